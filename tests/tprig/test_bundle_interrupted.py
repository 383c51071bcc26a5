"""A bundle whose run was interrupted: everything that is there is loaded, and the rest is named."""

import shutil
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest

from tests.tprig.test_bundle import (
    DOCUMENTS,
    NEEDED,
    RUN,
    STREAMS,
    loaded_document,
    loaded_stream,
    messages,
    problems,
    write_sample,
)
from tprig import evidence
from tprig.bundle import Bundle, Writer, load, seal
from tprig.bundle.files import encode, encode_document
from tprig.history import Stream


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sample(tmp_path_factory.mktemp("unsealed"), sealed=False)


@pytest.fixture
def root(sample: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sample, tmp_path / "sample"))


def truncations(root: Path, path: str) -> Iterator[tuple[bytes, Bundle]]:
    """Cuts a file at every byte, shortest last, and loads the bundle each time."""
    target = root / path
    data = target.read_bytes()
    for size_bytes in range(len(data) - 1, -1, -1):
        with target.open("r+b") as handle:
            handle.truncate(size_bytes)
        yield data[:size_bytes], load(root)


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_cut_at_any_byte_keeps_its_whole_records(root: Path, path: str) -> None:
    records = tuple(STREAMS[path][2])
    lines = (root / path).read_bytes().splitlines(keepends=True)
    # A line that lacks its newline alone is whole: an object ends with its brace.
    ends_bytes = [length - 1 for length in accumulate(map(len, lines))]
    for rest, bundle in truncations(root, path):
        stream = loaded_stream(bundle, path)
        assert isinstance(stream, Stream)
        whole = max(sum(end <= len(rest) for end in ends_bytes) - 1, 0)
        ended = whole > len(records)
        assert stream.records == records[:whole]
        assert stream.complete is ended
        assert problems(bundle).get(path) == (None if ended else "missing")
        assert not bundle.damaged


@pytest.mark.parametrize("path", DOCUMENTS)
def test_a_document_cut_at_any_byte_is_missing(root: Path, path: str) -> None:
    for rest, bundle in truncations(root, path):
        whole = rest.endswith(b"\n}")
        assert (loaded_document(bundle, path) is not None) is whole
        assert problems(bundle).get(path) == (None if whole else "missing")
        assert whole or "interrupted" in messages(bundle, path)
        assert not bundle.damaged


def test_a_manifest_cut_at_any_byte_is_damaged(root: Path) -> None:
    seal(root)
    for _, bundle in truncations(root, "manifest.json"):
        assert problems(bundle) == {"manifest.json": "damaged"}
        assert not bundle.sealed


@pytest.mark.parametrize("path", NEEDED)
def test_a_file_that_was_never_written_is_missing(root: Path, path: str) -> None:
    (root / path).unlink()
    bundle = load(root)
    assert problems(bundle) == {"manifest.json": "missing", path: "missing"}


def test_forensics_are_of_a_run_that_hung_and_missed_by_no_other(root: Path) -> None:
    (root / "runs/r1/forensics.jsonl").unlink()
    bundle = load(root)
    assert problems(bundle) == {"manifest.json": "missing"}
    assert bundle.runs["r1"].forensics is None


def resealed(root: Path) -> Bundle:
    seal(root)
    return load(root)


@pytest.mark.parametrize("path", STREAMS)
def test_a_sealed_stream_without_its_end_is_cut_and_not_damaged(root: Path, path: str) -> None:
    data = (root / path).read_bytes()
    (root / path).write_bytes(data[: data.rindex(b'{"type":"end"') + 5])
    bundle = resealed(root)
    assert problems(bundle) == {path: "missing"}
    stream = loaded_stream(bundle, path)
    assert isinstance(stream, Stream)
    assert stream.records == tuple(STREAMS[path][2])
    assert not stream.complete


def test_a_run_that_a_required_claim_names_is_missing_when_it_is_not_there(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "b")
    claim = evidence.Claim(
        id="c",
        test="t",
        checker="outputs",
        anomalies=[],
        runs={"on": "never ran"},
        tensor_parallel_size=1,
    )
    other = evidence.Claim(
        id="d",
        test="t",
        checker="outputs",
        anomalies=[],
        runs={"on": "no matter"},
        tensor_parallel_size=1,
        requirement="not-applicable",
        reason="no CUDA",
    )
    plan = DOCUMENTS["plan.json"]
    assert isinstance(plan, evidence.Plan)
    writer.document("plan.json", msgspec.structs.replace(plan, claims=[claim, other]))
    bundle = load(writer.root)
    assert problems(bundle)["runs/never ran"] == "missing"
    assert "'c' rests on it" in messages(bundle, "runs/never ran")
    assert "runs/no matter" not in problems(bundle)


def test_a_run_whose_engine_is_not_there_has_none(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "b")
    writer.document("runs/r1/run.json", RUN)
    bundle = load(writer.root)
    assert bundle.runs["r1"].run == RUN
    assert bundle.runs["r1"].engine is None
    assert problems(bundle)["engines/e1"] == "missing"


def test_an_engine_that_was_never_ready_lacks_no_configuration(root: Path) -> None:
    (root / "engines/e1/effective.json").unlink()
    events = root / "engines/e1/events.jsonl"
    events.write_bytes(events.read_bytes().replace(b'"ready"', b'"refused"'))
    assert "engines/e1/effective.json" not in problems(load(root))


def test_dropped_records_are_missing(root: Path) -> None:
    path = "runs/r1/steps.jsonl"
    whole = (root / path).read_bytes().replace(b'"dropped":0', b'"dropped":7')
    (root / path).write_bytes(whole)
    bundle = load(root)
    assert messages(bundle, path) == "lacks 7 records that could not be written"
    run = bundle.runs["r1"]
    assert run.steps is not None
    assert run.steps.dropped == 7


def test_a_bundle_interrupted_before_anything_was_written_loads(tmp_path: Path) -> None:
    bundle = load(Writer(tmp_path / "b").root)
    expected = {"manifest.json", "plan.json", "environment.json", "ledger.jsonl", "verdicts.json"}
    assert problems(bundle) == dict.fromkeys(expected, "missing")


def test_sealed_evidence_without_verdicts_lacks_nothing(root: Path) -> None:
    (root / "verdicts.json").unlink()
    bundle = resealed(root)
    assert bundle.problems == ()
    assert bundle.verdicts is None


def test_what_a_foreign_process_left_of_a_stream_is_loaded(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "b")
    header = evidence.Header(version=evidence.SCHEMA_VERSION, stream="rank", subject="r1")
    seam = evidence.Seam(name="s", target="t", expected="e", found="f", ok=True)
    target = writer.path("runs/r1/ranks/rank0.jsonl")
    target.write_bytes(encode(header) + b"\n" + encode(seam) + b'\n{"type":"st')
    writer.document("runs/r1/run.json", RUN)
    (stream,) = load(writer.root).runs["r1"].ranks.values()
    assert stream.records == (seam,)
    assert not stream.complete
    assert encode_document(RUN).endswith(b"}\n")

"""Writing a bundle: in one step, whole lines only, and clearly when the disk is full."""

import errno
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.tprig.test_bundle import ENVIRONMENT, PLAN, RUN, STEPS, VERDICTS, write_sample
from tprig import evidence
from tprig.bundle import BundleError, StreamWriter, Writer, load, seal
from tprig.bundle.files import encode, encode_document
from tprig.bundle.writer import BUFFER_BYTES

STEP = STEPS[0]
HEADER_LINE = encode(evidence.Header(version=1, stream="steps", subject="r1")) + b"\n"
STEP_LINE = encode(STEP) + b"\n"
LIMIT_BYTES = 300
PATH = "runs/r1/steps.jsonl"


class Disk:
    """A disk that takes so many bytes more, then is full: a write is short, the next one fails."""

    def __init__(self, free_bytes: int) -> None:
        self.free_bytes = free_bytes
        self._write = os.write

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if not self.free_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = self._write(descriptor, data[: self.free_bytes])
        self.free_bytes -= written
        return written


@contextmanager
def disk_with(free_bytes: int) -> Iterator[Disk]:
    disk = Disk(free_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", disk.write)
        yield disk


def everything(root: Path) -> list[str]:
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path / "bundle")


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    with pytest.raises(BundleError, match=r"is not empty \(it holds 'precious'\)"):
        Writer(tmp_path)
    assert everything(tmp_path) == ["precious"]


def test_of_two_runs_that_begin_in_one_folder_one_is_refused(tmp_path: Path) -> None:
    """Both may find it empty: whoever comes second must not write into the other's bundle."""
    first = Writer(tmp_path)
    with pytest.raises(BundleError, match="is being written by another run"):
        Writer(tmp_path)
    first.document("plan.json", PLAN)
    assert everything(tmp_path) == ["plan.json"]


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="nothing was written"):
        Writer(tmp_path / "file" / "bundle")


def test_a_document_is_deterministic_and_ends_in_a_newline(writer: Writer) -> None:
    one = msgspec.structs.replace(ENVIRONMENT, variables={"B": "1", "A": "2"})
    other = msgspec.structs.replace(ENVIRONMENT, variables={"A": "2", "B": "1"})
    writer.document("environment.json", one)
    first = (writer.root / "environment.json").read_bytes()
    writer.document("environment.json", other)
    assert (writer.root / "environment.json").read_bytes() == first
    assert first.endswith(b"\n}\n")


@pytest.mark.parametrize("path", ["../x", "/tmp/x", "a//b", "", "manifest.json", "a\\b", "a\0b"])  # noqa: S108
def test_a_path_that_no_bundle_holds_is_refused(writer: Writer, path: str) -> None:
    with pytest.raises(BundleError):
        writer.document(path, RUN)
    assert everything(writer.root.parent) == []


def test_a_stream_is_on_disk_from_its_header_to_its_end(writer: Writer) -> None:
    with writer.stream(PATH, "steps", "r1") as stream:
        assert (writer.root / PATH).read_bytes() == HEADER_LINE
        stream.write(STEP)
        stream.append(STEP_LINE * 2)
    end = encode(evidence.End(records=3)) + b"\n"
    assert (writer.root / PATH).read_bytes() == HEADER_LINE + STEP_LINE * 3 + end


@pytest.mark.parametrize(
    ("kind", "flush", "flushed"),
    [("steps", None, False), ("steps", True, True), ("ledger", None, True), ("engine", None, True)],
)
def test_which_streams_are_flushed_each_record(
    writer: Writer,
    kind: str,
    flush: bool | None,  # noqa: FBT001
    flushed: bool,  # noqa: FBT001
) -> None:
    records: dict[str, evidence.Record] = {
        "steps": STEP,
        "ledger": evidence.LedgerEvent(test="t", event="started", at="now"),
        "engine": evidence.EngineEvent(event="ready", at_ns=1, detail=""),
    }
    stream = writer.stream("s.jsonl", kind, "x", flush=flush)
    stream.write(records[kind])
    assert ((writer.root / "s.jsonl").read_bytes().count(b"\n") == 2) is flushed
    stream.close()
    assert (writer.root / "s.jsonl").read_bytes().count(b"\n") == 3


def test_a_full_buffer_is_flushed(writer: Writer) -> None:
    with writer.stream(PATH, "steps", "r1") as stream:
        stream.append(STEP_LINE * (BUFFER_BYTES // len(STEP_LINE) + 1))
        assert (writer.root / PATH).stat().st_size > BUFFER_BYTES


def test_an_exception_leaves_the_stream_without_an_end(writer: Writer) -> None:
    def interrupted() -> None:
        with writer.stream(PATH, "steps", "r1") as stream:
            stream.write(STEP)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert (writer.root / PATH).read_bytes() == HEADER_LINE + STEP_LINE


def test_a_stream_is_never_written_over(writer: Writer) -> None:
    writer.stream(PATH, "steps", "r1").close()
    before = (writer.root / PATH).read_bytes()
    with pytest.raises(BundleError, match="File exists"):
        writer.stream(PATH, "steps", "r1")
    assert (writer.root / PATH).read_bytes() == before


def test_a_closed_stream_takes_nothing_more(writer: Writer) -> None:
    stream = writer.stream(PATH, "steps", "r1")
    stream.close()
    stream.close()
    with pytest.raises(BundleError, match="is closed"):
        stream.write(STEP)


def test_what_would_be_read_back_otherwise_is_refused(writer: Writer) -> None:
    row = evidence.Row(token_id=1, logprob=float("nan"), rank=None, finite=None)
    emission = evidence.Emission(step=0, request="q", first=0, rows=[row], supports=None)
    with writer.stream("runs/r1/outputs.jsonl", "outputs", "r1") as stream:
        with pytest.raises(BundleError, match="a float that JSON lacks as a word"):
            stream.write(emission)
        with pytest.raises(BundleError, match="does not fit the schema"):
            stream.write(STEP)
        with pytest.raises(BundleError, match="does not fit the schema"):
            stream.write(evidence.Emission(step=-1, request="q", first=0, rows=[], supports=None))
        with pytest.raises(BundleError, match="expected whole lines"):
            stream.append(b"{}")
    bad = msgspec.structs.replace(RUN, elapsed_s=float("nan"))
    with pytest.raises(BundleError, match="does not fit the schema"):
        writer.document("runs/r1/run.json", bad)
    assert everything(writer.root) == ["runs/r1/outputs.jsonl"]


def test_an_unknown_kind_of_stream_is_refused(writer: Writer) -> None:
    with pytest.raises(BundleError, match="unknown stream 'tokens'; known are"):
        writer.stream("x.jsonl", "tokens", "r1")


def test_threads_write_whole_lines(writer: Writer) -> None:
    def write_many(stream: StreamWriter) -> None:
        for _ in range(50):
            stream.write(STEP)

    with writer.stream(PATH, "steps", "r1", flush=True) as stream:
        threads = [threading.Thread(target=write_many, args=[stream]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    steps = load(writer.root).runs["r1"].steps
    assert steps is not None
    assert steps.records == (STEP,) * 200
    assert steps.complete


# --- a full disk -----------------------------------------------------------------------------


@pytest.mark.parametrize("free_bytes", [0, 1, 100])
def test_a_document_on_a_full_disk_leaves_the_older_one(writer: Writer, free_bytes: int) -> None:
    writer.document("plan.json", PLAN)
    with (
        disk_with(free_bytes),
        pytest.raises(BundleError, match=r"plan\.json .*No space left.*older version was kept"),
    ):
        writer.document("plan.json", msgspec.structs.replace(PLAN, seed=2))
    assert everything(writer.root) == ["plan.json"]
    assert (writer.root / "plan.json").read_bytes() == encode_document(PLAN)
    writer.document("verdicts.json", VERDICTS)
    assert load(writer.root).verdicts == VERDICTS


def test_a_new_document_on_a_full_disk_leaves_nothing(writer: Writer) -> None:
    with disk_with(5), pytest.raises(BundleError, match=r"nothing of it was kept; free some space"):
        writer.document("plan.json", PLAN)
    assert everything(writer.root) == []


def test_a_stream_that_cannot_begin_can_begin_later(writer: Writer) -> None:
    with disk_with(5), pytest.raises(BundleError, match=r"steps\.jsonl .*No space left"):
        writer.stream(PATH, "steps", "r1")
    assert everything(writer.root) == []
    writer.stream(PATH, "steps", "r1").close()
    assert everything(writer.root) == [PATH]


@pytest.mark.parametrize("free_bytes", range(0, 3 * len(STEP_LINE), 7))
def test_a_stream_on_a_full_disk_keeps_whole_lines_and_counts_the_dropped(
    writer: Writer, free_bytes: int
) -> None:
    stream = writer.stream(PATH, "steps", "r1")
    for _ in range(3):
        stream.write(STEP)
    with disk_with(free_bytes), pytest.raises(BundleError, match="all whole lines, were kept"):
        stream.flush()
    kept = free_bytes // len(STEP_LINE)
    assert (writer.root / PATH).read_bytes() == HEADER_LINE + STEP_LINE * kept
    stream.write(STEP)
    stream.close()
    steps = load(writer.root).runs["r1"].steps
    assert steps is not None
    assert steps.records == (STEP,) * (kept + 1)
    assert steps.complete
    assert steps.dropped == 3 - kept


def test_a_stream_whose_end_cannot_be_written_counts_as_cut(writer: Writer) -> None:
    stream = writer.stream(PATH, "steps", "r1", flush=True)
    stream.write(STEP)
    with disk_with(3), pytest.raises(BundleError, match="No space left"):
        stream.close()
    assert stream.closed
    assert (writer.root / PATH).read_bytes() == HEADER_LINE + STEP_LINE


def test_an_interrupt_in_the_middle_of_a_line_costs_that_line_only(writer: Writer) -> None:
    stream = writer.stream(PATH, "steps", "r1", flush=True)
    stream.write(STEP)
    real_write = os.write

    def interrupted(descriptor: int, data: bytes) -> int:
        real_write(descriptor, data[:9])
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.write(STEP)
    stream.write(STEP)
    stream.close()
    steps = load(writer.root).runs["r1"].steps
    assert steps is not None
    assert (len(steps.records), steps.complete, steps.dropped) == (2, True, 1)


def test_the_kernels_own_refusal_is_told_like_a_full_disk(tmp_path: Path) -> None:
    script = f"""
import resource, signal
from pathlib import Path
from tests.tprig.test_bundle import PLAN, STEPS
from tprig.bundle import BundleError, Writer
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, ({LIMIT_BYTES}, {LIMIT_BYTES}))
writer = Writer(Path({str(tmp_path / "b")!r}))
stream = writer.stream({PATH!r}, "steps", "r1", flush=True)
try:
    while True:
        stream.write(STEPS[0])
except BundleError as error:
    print(error)
try:
    writer.document("plan.json", PLAN)
except BundleError as error:
    print(error)
"""

    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
        timeout=60,
    )
    first, second = done.stdout.splitlines()
    assert PATH in first
    assert "free some space" in first
    assert "plan.json" in second
    assert everything(tmp_path / "b") == [PATH]
    kept = (LIMIT_BYTES - len(HEADER_LINE)) // len(STEP_LINE)
    assert (tmp_path / "b" / PATH).read_bytes() == HEADER_LINE + STEP_LINE * kept


# --- sealing ---------------------------------------------------------------------------------


def test_the_manifest_lists_every_file_by_size_and_digest(tmp_path: Path) -> None:
    root = write_sample(tmp_path, sealed=False)
    manifest = seal(root)
    assert [entry.path for entry in manifest.files] == [
        path for path in everything(root) if path != "manifest.json"
    ]
    for entry in manifest.files:
        data = (root / entry.path).read_bytes()
        assert (entry.size_bytes, entry.sha256) == (len(data), hashlib.sha256(data).hexdigest())
    listed = msgspec.json.encode([manifest.version, "sample", manifest.files])
    assert manifest.root == hashlib.sha256(listed).hexdigest()
    assert (root / "manifest.json").read_bytes() == encode_document(manifest)


def test_sealing_again_takes_in_what_came_since(writer: Writer) -> None:
    writer.document("plan.json", PLAN)
    first = writer.seal()
    writer.document("verdicts.json", VERDICTS)
    assert load(writer.root).damaged
    second = writer.seal()
    assert [entry.path for entry in second.files] == ["plan.json", "verdicts.json"]
    assert first.root != second.root
    assert not load(writer.root).damaged
    assert writer.seal() == second


def test_sealing_takes_an_open_stream_as_it_is(writer: Writer) -> None:
    stream = writer.stream("ledger.jsonl", "ledger", writer.bundle, flush=False)
    stream.write(evidence.LedgerEvent(test="t", event="started", at="now"))
    writer.seal()
    ledger = load(writer.root).ledger
    assert ledger is not None
    assert (len(ledger.records), ledger.complete) == (1, False)
    stream.close()
    writer.seal()
    ledger = load(writer.root).ledger
    assert ledger is not None
    assert ledger.complete


def test_a_seal_made_anew_keeps_the_bundles_id(tmp_path: Path) -> None:
    moved = write_sample(tmp_path).rename(tmp_path / "moved")
    assert seal(moved).bundle == "sample"
    assert load(moved).problems == ()


def test_what_no_bundle_may_hold_is_not_sealed(writer: Writer) -> None:
    writer.document("plan.json", PLAN)
    (writer.root / "link").symlink_to("plan.json")
    with pytest.raises(BundleError, match=r"'link' is a symbolic link; .* remove it"):
        writer.seal()
    (writer.root / "link").unlink()
    (writer.root / "a\\b").write_text("x")
    with pytest.raises(BundleError, match="holds a backslash"):
        writer.seal()
    (writer.root / "a\\b").unlink()
    (writer.root / os.fsdecode(b"\xff\n")).write_text("x")
    with pytest.raises(BundleError, match=r"\\udcff\\n' holds a character"):
        writer.seal()
    assert not (writer.root / "manifest.json").exists()


def test_a_seal_on_a_full_disk_leaves_the_bundle_unsealed(writer: Writer) -> None:
    writer.document("plan.json", PLAN)
    with disk_with(9), pytest.raises(BundleError, match="not sealed; its files stay; free some"):
        writer.seal()
    assert everything(writer.root) == ["plan.json"]


def test_files_are_as_readable_as_others_of_the_user(writer: Writer) -> None:
    writer.document("plan.json", PLAN)
    plain = writer.root / "plain"
    plain.write_text("x")
    assert (writer.root / "plan.json").stat().st_mode == plain.stat().st_mode

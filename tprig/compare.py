"""Two bundles side by side: the first place where their outputs differ, and what may explain it.

Runs are paired by id, requests by id within a run, rows by position. A request is compared only
where both bundles asked for the same thing. Values are compared exactly, as vLLM returned them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from tprig import evidence
from tprig.history import FIRST_RECORD_LINE, RunHistory, Stream

Field = Literal[
    "token", "logprob", "rank", "finite set", "support", "length", "finish reason", "refusal"
]


@dataclass(frozen=True)
class Divergence:
    """Where one request's outputs first part."""

    run: str
    request: str
    row: int | None
    """Position among the request's output tokens; None when the request was refused."""
    field: Field
    a: str
    b: str
    """What each bundle holds there."""
    where_a: evidence.Location
    where_b: evidence.Location
    token_row: int | None
    """First row whose token differs; None when no token of the rows that both have does."""


@dataclass(frozen=True)
class RunComparison:
    """One run that both bundles hold."""

    run: str
    requests: int
    """Requests compared."""
    rows: int
    """Rows that both bundles have, over the requests compared."""
    divergences: tuple[Divergence, ...]
    """At most one a request, in the order of bundle A's stream."""
    not_compared: Mapping[str, str]
    """Request id (or `*`, the run) -> why it could not be compared, or not to its end."""
    largest_logprob_difference: float | None
    """Over rows before a request's tokens part; None when no two finite logprobs met."""


@dataclass(frozen=True)
class Comparison:
    """The outputs of two bundles, compared."""

    runs: tuple[RunComparison, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def divergences(self) -> tuple[Divergence, ...]:
        """Every request's divergence, run by run."""
        return tuple(found for run in self.runs for found in run.divergences)

    @property
    def rows(self) -> int:
        """Rows compared in all."""
        return sum(run.rows for run in self.runs)

    @property
    def whole(self) -> bool:
        """True when everything that either bundle holds was compared, and there was something."""
        compared = any(run.requests for run in self.runs)
        gaps = self.only_a or self.only_b or any(run.not_compared for run in self.runs)
        return compared and not gaps

    @property
    def exit_code(self) -> int:
        """0 equal, 1 different, 2 when no difference shows but not everything was compared."""
        if self.divergences:
            return 1
        return 0 if self.whole else 2


def compare(a: Mapping[str, RunHistory], b: Mapping[str, RunHistory]) -> Comparison:
    """Compare the outputs of two bundles' runs, by run id."""
    return Comparison(
        runs=tuple(_compare_run(a[run], b[run]) for run in a if run in b),
        only_a=tuple(run for run in a if run not in b),
        only_b=tuple(run for run in b if run not in a),
    )


# --- one run ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Row:
    position: int
    row: evidence.Row
    support: list[int] | None
    where: evidence.Location


@dataclass
class _Answer:
    """All that one run says of one request."""

    rows: list[_Row]
    where: evidence.Location
    finish: str | None = None
    refusal: str | None = None

    @property
    def ended(self) -> bool:
        return self.finish is not None or self.refusal is not None


def _compare_run(a: RunHistory, b: RunHistory) -> RunComparison:
    reason = _incomparable(a, b)
    if reason is not None or a.outputs is None or b.outputs is None:
        return RunComparison(a.id, 0, 0, (), {"*": reason or "no outputs were recorded"}, None)
    not_compared = _cut_short(a.outputs, b.outputs) | _different_requests(a, b)
    answers_a, answers_b = _answers(a.id, a.outputs), _answers(b.id, b.outputs)
    divergences: list[Divergence] = []
    gaps: list[float] = []
    requests = rows = 0
    for request in {**answers_a, **answers_b, **_requests(a)}:
        if request in not_compared:
            continue
        ours, theirs = answers_a.get(request), answers_b.get(request)
        if ours is None or theirs is None:
            not_compared[request] = _one_sided(ours, theirs)
            continue
        requests += 1
        rows += min(len(ours.rows), len(theirs.rows))
        gaps += _logprob_gaps(ours, theirs)
        divergence = _compare_request(a.id, request, ours, theirs)
        if divergence is not None:
            divergences.append(divergence)
        elif not (ours.ended and theirs.ended):
            not_compared[request] = _unfinished(ours, theirs)
    divergences.sort(key=lambda found: found.where_a.line or 0)
    return RunComparison(
        a.id, requests, rows, tuple(divergences), not_compared, max(gaps, default=None)
    )


def _incomparable(a: RunHistory, b: RunHistory) -> str | None:
    for name, run in (("A", a), ("B", b)):
        if run.outputs is None:
            return f"bundle {name} holds no outputs of this run"
        if run.workload is None:
            return f"bundle {name} does not say what was asked (requests.json)"
    return None


def _cut_short(
    a: Stream[evidence.OutputRecord], b: Stream[evidence.OutputRecord]
) -> dict[str, str]:
    cut = [
        f"bundle {name}'s outputs {'were cut short' if not stream.complete else 'lack records'}"
        for name, stream in (("A", a), ("B", b))
        if not stream.complete or stream.dropped
    ]
    return {"*": "; ".join(cut)} if cut else {}


def _different_requests(a: RunHistory, b: RunHistory) -> dict[str, str]:
    asked_a, asked_b = _requests(a), _requests(b)
    reasons: dict[str, str] = {}
    for request in asked_a | asked_b:
        ours, theirs = asked_a.get(request), asked_b.get(request)
        if ours is None or theirs is None:
            reasons[request] = f"only bundle {'A' if theirs is None else 'B'} asked it"
        elif ours != theirs:
            reasons[request] = f"the bundles asked different things: {_changed(ours, theirs)}"
    return reasons


def _requests(run: RunHistory) -> dict[str, evidence.Request]:
    return {request.id: request for request in run.workload.requests} if run.workload else {}


def _changed(a: evidence.Request, b: evidence.Request) -> str:
    names = [
        name
        for name in ("prompt_token_ids", "arrival_step")
        if getattr(a, name) != getattr(b, name)
    ]
    names += [
        f"sampling.{name}"
        for name in evidence.Sampling.__struct_fields__
        if getattr(a.sampling, name) != getattr(b.sampling, name)
    ]
    return ", ".join(names)


def _answers(run: str, stream: Stream[evidence.OutputRecord]) -> dict[str, _Answer]:
    answers: dict[str, _Answer] = {}
    for line, record in enumerate(stream.records, FIRST_RECORD_LINE):
        where = evidence.Location(file=stream.path, line=line, run=run, request=record.request)
        answer = answers.setdefault(record.request, _Answer(rows=[], where=where))
        if isinstance(record, evidence.Refusal):
            answer.refusal = record.error
        else:
            answer.rows += _rows(record, where)
            answer.finish = _finish(record)
    return answers


def _rows(record: evidence.Emission, where: evidence.Location) -> Iterator[_Row]:
    for index, row in enumerate(record.rows):
        supports = record.supports
        support = supports[index] if supports is not None and index < len(supports) else None
        position = record.first + index
        located = evidence.Location(
            file=where.file, line=where.line, run=where.run, request=where.request, row=position
        )
        yield _Row(position, row, support, located)


def _finish(record: evidence.Emission) -> str | None:
    if record.finish_reason is None:
        return None
    stop = "" if record.stop_reason is None else f" ({record.stop_reason})"
    return record.finish_reason + stop


def _one_sided(a: _Answer | None, b: _Answer | None) -> str:
    if a is None and b is None:
        return "neither bundle has outputs for it"
    return f"only bundle {'A' if b is None else 'B'} has outputs for it"


def _unfinished(a: _Answer, b: _Answer) -> str:
    names = [name for name, answer in (("A", a), ("B", b)) if not answer.ended]
    return f"did not finish in bundle {' and '.join(names)}; equal as far as both go"


# --- one request -----------------------------------------------------------------------------


def _compare_request(run: str, request: str, a: _Answer, b: _Answer) -> Divergence | None:
    token_row = next((x.position for x, y in _pairs(a, b) if _token(x) != _token(y)), None)

    def part(
        row: int | None,
        field: Field,
        values: tuple[str, str],
        where: tuple[evidence.Location, evidence.Location],
    ) -> Divergence:
        return Divergence(run, request, row, field, *values, *where, token_row)

    if a.refusal != b.refusal:
        values = (a.refusal or "accepted", b.refusal or "accepted")
        return part(None, "refusal", values, (a.where, b.where))
    for x, y in _pairs(a, b):
        found = _compare_row(x, y)
        if found is not None:
            return part(x.position, found[0], found[1:], (x.where, y.where))
    end = _compare_end(a, b)
    if end is None:
        return None
    shorter = min(len(a.rows), len(b.rows))
    return part(shorter, end[0], end[1:], (_last(a, shorter), _last(b, shorter)))


def _pairs(a: _Answer, b: _Answer) -> Iterator[tuple[_Row, _Row]]:
    return zip(a.rows, b.rows, strict=False)


def _token(row: _Row) -> tuple[int, int]:
    return row.position, row.row.token_id


def _compare_row(a: _Row, b: _Row) -> tuple[Field, str, str] | None:
    if _token(a) != _token(b):
        return "token", _shown_token(a, b), _shown_token(b, a)
    if a.row.logprob != b.row.logprob:
        return "logprob", _shown(a.row.logprob), _shown(b.row.logprob)
    if a.row.rank != b.row.rank:
        return "rank", _shown(a.row.rank), _shown(b.row.rank)
    if a.row.finite != b.row.finite:
        return "finite set", *_shown_finite(a.row.finite, b.row.finite)
    if a.support != b.support:
        return "support", *_shown_sets(a.support, b.support)
    return None


def _compare_end(a: _Answer, b: _Answer) -> tuple[Field, str, str] | None:
    longer, shorter = (a, b) if len(a.rows) >= len(b.rows) else (b, a)
    # A request that did not finish may only lack its tail; one that did may not be outgrown.
    if len(a.rows) != len(b.rows) and shorter.ended:
        return "length", _shown_end(a), _shown_end(b)
    if longer.ended and shorter.ended and a.finish != b.finish:
        return "finish reason", _shown(a.finish), _shown(b.finish)
    return None


def _last(answer: _Answer, row: int) -> evidence.Location:
    if row < len(answer.rows):
        return answer.rows[row].where
    return answer.rows[-1].where if answer.rows else answer.where


def _logprob_gaps(a: _Answer, b: _Answer) -> Iterator[float]:
    for x, y in _pairs(a, b):
        if _token(x) != _token(y):
            return
        if isinstance(x.row.logprob, float) and isinstance(y.row.logprob, float):
            yield abs(x.row.logprob - y.row.logprob)


# --- how values are shown --------------------------------------------------------------------


def _shown(value: object) -> str:
    return "none" if value is None else str(value)


def _shown_token(row: _Row, other: _Row) -> str:
    if row.position == other.position:
        return str(row.row.token_id)
    return f"{row.row.token_id} at position {row.position}"


def _shown_end(answer: _Answer) -> str:
    return f"{len(answer.rows)} rows, then {answer.finish or 'no end'}"


def _shown_sets(a: list[int] | None, b: list[int] | None) -> tuple[str, str]:
    if a and b and sorted(a) == sorted(b):
        index = next(i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y)
        return f"token {a[index]} at index {index}", f"token {b[index]} at index {index}"
    return _shown_set(a, b), _shown_set(b, a)


def _shown_set(tokens: list[int] | None, other: list[int] | None) -> str:
    if tokens is None:
        return "none"
    own = sorted(set(tokens) - set(other or ()))
    if other is None or not own:
        return f"{len(tokens)} tokens" + ("" if other is None else ", none of its own")
    more = "" if len(own) <= 8 else f" and {len(own) - 8} more"
    return f"{len(tokens)} tokens, of its own: {', '.join(map(str, own[:8]))}{more}"


def _shown_finite(a: evidence.Finite | None, b: evidence.Finite | None) -> tuple[str, str]:
    if a is None or b is None or set(a.token_ids) != set(b.token_ids):
        return _shown_sets(a.token_ids if a else None, b.token_ids if b else None)
    if a.complete != b.complete:
        return f"complete: {a.complete}", f"complete: {b.complete}"
    entries_a = list(zip(a.token_ids, a.logprobs, strict=False))
    entries_b = list(zip(b.token_ids, b.logprobs, strict=False))
    for x, y in zip(entries_a, entries_b, strict=False):
        if x != y:
            return f"token {x[0]}: {x[1]}", f"token {y[0]}: {y[1]}"
    return f"{len(a.logprobs)} logprobs", f"{len(b.logprobs)} logprobs"


# --- what may explain it ---------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One thing that the two bundles were run with differently."""

    what: str
    a: str | None
    """None: bundle A does not say."""
    b: str | None
    runs: tuple[str, ...]
    """The runs whose engines differ so; empty when it is the machine or the plan."""


def explain(
    a: Mapping[str, RunHistory],
    b: Mapping[str, RunHistory],
    environments: tuple[evidence.Environment | None, evidence.Environment | None],
) -> tuple[Difference, ...]:
    """List what the paired runs' engines, then the machines, differ in.

    Versions and digests of vLLM come first: they explain most. Process ids are left out.
    """
    by_run: dict[tuple[str, str | None, str | None], list[str]] = {}
    for run in a:
        if run in b:
            for difference in _changes(_engine_facts(a[run]), _engine_facts(b[run])):
                by_run.setdefault(difference, []).append(run)
    engines = tuple(Difference(*facts, tuple(runs)) for facts, runs in by_run.items())
    machines = _changes(_machine_facts(environments[0]), _machine_facts(environments[1]))
    return engines + tuple(Difference(*facts, ()) for facts in machines)


def _changes(
    a: Mapping[str, str], b: Mapping[str, str]
) -> Iterator[tuple[str, str | None, str | None]]:
    for what in {**a, **b}:
        if a.get(what) != b.get(what):
            yield what, a.get(what), b.get(what)


def _engine_facts(run: RunHistory) -> dict[str, str]:
    facts: dict[str, str] = {}
    effective = run.engine.effective if run.engine else None
    arm = run.engine.arm if run.engine else None
    if effective is not None:
        facts |= {"vLLM version": effective.vllm_version, "vLLM digest": effective.vllm_digest}
    if arm is not None:
        facts |= _arm_facts(arm)
    if effective is not None:
        facts["devices"] = ", ".join(effective.devices)
        facts |= {f"version of {name}": value for name, value in effective.versions.items()}
        facts |= {f"config {key}": value for key, value in _dtype_first(effective.config)}
        facts["vLLM path"] = effective.vllm_path
    if run.run is not None:
        facts["planted faults"] = ", ".join(run.run.faults) or "none"
    return facts


def _dtype_first(config: Mapping[str, str]) -> list[tuple[str, str]]:
    return sorted(config.items(), key=lambda item: (not item[0].endswith("dtype"), item[0]))


def _arm_facts(arm: evidence.Arm) -> dict[str, str]:
    facts = {
        "model digest": arm.model_digest,
        "platform": arm.platform,
        "tensor parallel size": str(arm.tensor_parallel_size),
        "engine core as its own process": str(arm.core_process),
        "interpreter": arm.python,
        "source tree": arm.tree or "none",
    }
    arguments = {
        f"engine argument {name}": bytes(value).decode() for name, value in arm.engine_args.items()
    }
    return facts | arguments | {f"engine {name}": value for name, value in arm.environment.items()}


def _machine_facts(environment: evidence.Environment | None) -> dict[str, str]:
    if environment is None:
        return {}
    facts = {
        "tprig version": environment.tprig_version,
        **_repository_facts("tprig", environment.tprig),
        **_repository_facts("tree under test", environment.tree),
        "GPUs": ", ".join(f"{gpu.name} {gpu.uuid}" for gpu in environment.gpus) or "none",
        "GPU driver": ", ".join(sorted({gpu.driver or "unknown" for gpu in environment.gpus}))
        or "none",
        "CPU": environment.cpu,
        "cores": str(environment.cpu_count),
        "memory": f"{environment.memory_bytes} bytes",
        "machine": environment.machine,
        "kernel": environment.kernel,
        "Python": environment.python,
        "host": environment.host,
        "more ranks than devices": str(environment.oversubscribed),
    }
    facts |= {f"package {_package(line)[0]}": _package(line)[1] for line in environment.packages}
    return facts | {f"variable {name}": value for name, value in environment.variables.items()}


def _repository_facts(name: str, repository: evidence.Repository | None) -> dict[str, str]:
    if repository is None:
        return {}
    return {
        f"{name} commit": repository.commit or "unknown",
        f"{name} uncommitted changes": repository.diff_digest
        or {True: "some", False: "none", None: "unknown"}[repository.dirty],
    }


def _package(line: str) -> tuple[str, str]:
    name, separator, version = line.partition("==")
    return (name, version) if separator else (line, line)

"""Judges acceptance: what was drafted, accepted, recovered and granted as a bonus.

Four accounts of the same thing must agree: each rank's record of its sampling calls, the emitted
tokens, vLLM's own counters, and the run with replay off.

What the counters rest on (vLLM 0.32 and 0.33, `Scheduler.update_from_output`): for each request
of a step that had draft slots and sampled a token, one draft is counted, with every slot as a
draft token (placeholders of -1 too; only a grammar's invalid drafts are taken off, and no workload
here has a grammar) and with all sampled tokens but the last as accepted. This happens before the
output is cut for a stop token or `max_tokens`, so the last verification of a request counts whole.
A request that has already finished is skipped: with asynchronous scheduling a call may be in
flight when its request finishes, and that call is neither counted nor emitted. A prefill chunk
samples nothing and is not counted. Preempted requests compute their tokens again as prefill, so
they sample each position once. `GPUModelRunner.sample` is called in every step, with drafts or
without, so the sampled tokens of a request, in order, are its output.

A step without counters counted nothing when vLLM gave other statistics of it (it leaves out what no
draft fed), or when it emitted nothing. Otherwise its counters are not known, and the known ones may
sum to less, but not to more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from tprig.checkers.checker import Checker, Judgement, Runs
from tprig.checkers.emitted import Emitted, emitted, ended, whole
from tprig.checkers.emitted import where as row_place
from tprig.checkers.verified import (
    Call,
    Tally,
    calls,
    place,
    sampling_calls,
    until_finished,
    verifications,
)
from tprig.checkers.wording import counted, tokens
from tprig.evidence import Claim, Finding, Location, Step, Verification, Verified
from tprig.history import RunHistory

ANOMALY = "output.acceptance"


def check_acceptance(claim: Claim, runs: Runs) -> Judgement:  # noqa: ARG001 - a checker's signature
    """Judge roles `off` and `on`, or either alone.

    Measured, of `on` where there is one: `rows` (emitted, found among the sampled tokens),
    `verifications` (with drafts), `accepted`, `recovered` and `bonus` tokens, and how often a
    request was `preempted`.
    """
    judgement = Judgement()
    arms = {role: _Arm.of(runs[role]) for role in sorted(runs, reverse=True) if runs[role].ranks}
    for arm in arms.values():
        judgement.findings += _judge_run(arm, judgement)
    if "off" in arms and "on" in arms:
        judgement.compared += _judge_pair(arms["off"], arms["on"])
        judgement.findings += judgement.compared
    if arms:
        _measure(judgement, next(iter(arms.values())))
    return judgement


@dataclass(frozen=True)
class _Arm:
    run: RunHistory
    rank: int
    """The rank whose record stands for the run: the lowest."""
    outputs: dict[str, Emitted]
    sampled: dict[str, list[Call]]
    whole: bool
    """True when the rank's stream lacks nothing."""

    @staticmethod
    def of(run: RunHistory) -> _Arm:
        rank = min(run.ranks)
        return _Arm(run, rank, emitted(run), sampling_calls(run, rank), whole(run.ranks[rank]))

    def counted(self, request: str) -> list[Call]:
        """The request's calls that were made before it finished."""
        sampled = self.sampled.get(request, [])
        return sampled[: until_finished(sampled, self.outputs.get(request))]

    def tally(self) -> Tally:
        tally = Tally()
        for request in self.sampled:
            for call in self.counted(request):
                tally.add(call)
        return tally


def _judge_run(arm: _Arm, judgement: Judgement) -> Iterator[Finding]:
    run = arm.run
    if not arm.sampled:
        judgement.missing.append(f"run {run.id}: no sampling call was recorded")
        return
    for rank in run.ranks:
        yield from _inconsistent(run, rank)
    yield from _ranks_part(arm)
    if not run.ranks[arm.rank].dropped and run.outputs is not None and not run.outputs.dropped:
        for request in arm.outputs | arm.sampled:
            yield from _against_output(arm, request)
    if arm.whole and ended(run) and run.steps is not None and whole(run.steps):
        yield from _against_counters(arm, judgement)


def _finding(message: str, where: Location) -> Finding:
    return Finding(anomaly=ANOMALY, message=message, where=where)


# --- each call by itself ------------------------------------------------------------------------


def _inconsistent(run: RunHistory, rank: int) -> Iterator[Finding]:
    for call in calls(run, rank):
        message = _inconsistency(call)
        if message is not None:
            yield _finding(message, place(run, call))


def _inconsistency(call: Call) -> str | None:
    drafts, sampled, rejected = call.drafts, call.sampled, call.verified.rejected
    if len(sampled) > call.valid_drafts + 1:
        return (
            f"expected at most {call.valid_drafts + 1} sampled tokens for drafts {tokens(drafts)}, "
            f"found {tokens(sampled)}: the accepted drafts and one more"
        )
    # vLLM counts a bonus slot as rejected when it was not reached: num_logits - num_sampled.
    expected = len(drafts) + 1 - len(sampled) if sampled else 0
    if rejected != expected:
        return (
            f"expected {expected} rejected of {counted(len(drafts), 'draft')} with "
            f"{counted(len(sampled), 'sampled token')}, found {rejected}"
        )
    if sampled[:-1] != drafts[: call.accepted]:
        return (
            f"expected the accepted tokens to be the first drafts {tokens(drafts[: call.accepted])}"
            f", found {tokens(sampled[:-1])}"
        )
    return None


# --- between ranks ------------------------------------------------------------------------------


def _ranks_part(arm: _Arm) -> Iterator[Finding]:
    """The first call in which each other rank differs from the lowest."""
    for rank, stream in arm.run.ranks.items():
        if rank == arm.rank or stream.dropped or arm.run.ranks[arm.rank].dropped:
            continue
        finding = _first_difference(arm, rank)
        if finding is not None:
            yield finding


def _first_difference(arm: _Arm, rank: int) -> Finding | None:
    ours, theirs = arm.run.ranks[arm.rank], arm.run.ranks[rank]
    certain = whole(ours) and whole(theirs)
    for a, b in zip_longest(verifications(ours), verifications(theirs)):
        if a is None or b is None:
            return _rank_stops(arm, rank, len(list(verifications(theirs)))) if certain else None
        if a[1] == b[1]:
            continue
        where = Location(
            file=theirs.path,
            line=b[0],
            run=arm.run.id,
            request=_differing_request(a[1], b[1]),
            step=b[1].step,
            rank=rank,
        )
        return _finding(
            f"expected the call of rank {arm.rank} (line {a[0]} of {ours.path}), found another on "
            f"rank {rank}: every rank samples the same tokens from the same drafts",
            where,
        )
    return None


def _differing_request(a: Verification, b: Verification) -> str | None:
    for ours, theirs in zip_longest(a.requests, b.requests):
        if ours != theirs:
            either: Verified = theirs or ours
            return either.request
    return None


def _rank_stops(arm: _Arm, rank: int, found: int) -> Finding:
    expected = len(list(verifications(arm.run.ranks[arm.rank])))
    where = Location(file=arm.run.ranks[rank].path, run=arm.run.id, rank=rank)
    return _finding(
        f"expected {counted(expected, 'sampling call')} as on rank {arm.rank}, found {found} on "
        f"rank {rank}",
        where,
    )


# --- against the emitted tokens -----------------------------------------------------------------


def _against_output(arm: _Arm, request: str) -> Iterator[Finding]:
    """The sampled tokens of a request are its output, which only its end may cut."""
    output = arm.outputs.get(request, Emitted(request))
    sampled = arm.sampled.get(request, [])
    drawn = [(token, call) for call in sampled for token in call.sampled]
    rows = {row.position: row for row in output.rows}
    for position, (token, call) in enumerate(drawn[: output.length]):
        row = rows.get(position)
        if row is None or row.row.token_id != token:
            found = "no such row" if row is None else row.row.token_id
            yield _finding(
                f"expected the emitted token to be {token}, which rank {arm.rank} sampled (line "
                f"{call.line} of {arm.run.ranks[arm.rank].path}), found {found}",
                place(arm.run, call, position) if row is None else row_place(arm.run, row),
            )
            return
    if output.length > len(drawn) and arm.whole:
        yield _finding(
            f"expected a sampling call for every emitted token, found {len(drawn)} sampled tokens "
            f"and {counted(output.length, 'row')}",
            row_place(arm.run, rows.get(len(drawn), output.rows[-1])),
        )
    yield from _surplus(arm, request, output, len(drawn))


def _surplus(arm: _Arm, request: str, output: Emitted, drawn: int) -> Iterator[Finding]:
    """Sampled tokens that were never emitted, though the request had not finished or long had."""
    sampled = arm.sampled.get(request, [])
    if output.finish_reason is None:
        if drawn > output.length and ended(arm.run):
            yield _finding(
                f"expected {counted(drawn, 'emitted token')}, found {output.length} and no finish "
                f"reason",
                place(arm.run, sampled[-1], output.length),
            )
        return
    late = sampled[until_finished(sampled, output) :]
    if late and not _in_flight(arm.run):
        yield _finding(
            f"expected no sampling call after the request finished with "
            f"{counted(output.length, 'row')}, found {len(late)}: scheduling is synchronous",
            place(arm.run, late[0], output.length),
        )


def _in_flight(run: RunHistory) -> bool:
    """True unless it is known that no call can be in flight when its request finishes."""
    effective = run.engine.effective if run.engine is not None else None
    return effective is None or effective.config.get("scheduler.async_scheduling") != "False"


# --- against vLLM's counters --------------------------------------------------------------------


def _against_counters(arm: _Arm, judgement: Judgement) -> Iterator[Finding]:
    if arm.run.steps is None:
        return
    tally = arm.tally()
    expected = {
        "drafts": tally.drafts,
        "draft tokens": tally.draft_tokens,
        "accepted tokens": tally.accepted,
        **{f"accepted at position {i}": n for i, n in enumerate(tally.accepted_by_position or [])},
    }
    emitting = {row.step for output in arm.outputs.values() for row in output.rows}
    found, unknown = _counters(_steps(arm.run), emitting)
    for name in expected | found:
        want, have = expected.get(name, 0), found.get(name, 0)
        if have > want or (have < want and not unknown):
            yield _finding(
                f"expected vLLM to count {want} {name}, found {have} in its own counters: every "
                f"verification before a request's end counts, whole",
                Location(file=arm.run.steps.path, run=arm.run.id),
            )
        elif have < want:
            judgement.missing.append(
                f"run {arm.run.id}: vLLM's counters are unknown in {counted(unknown, 'step')}, and "
                f"the others count {have} of {want} {name}"
            )


def _steps(run: RunHistory) -> Iterator[Step]:
    records = () if run.steps is None else run.steps.records
    return (record for record in records if isinstance(record, Step))


def _counters(steps: Iterator[Step], emitting: set[int]) -> tuple[dict[str, int], int]:
    """Sums of vLLM's counters, and in how many steps they are unknown."""
    found = {"drafts": 0, "draft tokens": 0, "accepted tokens": 0}
    unknown = 0
    for step in steps:
        if step.drafts is None or step.draft_tokens is None or step.accepted_tokens is None:
            unknown += step.running is None and step.step in emitting
            continue
        found["drafts"] += step.drafts
        found["draft tokens"] += step.draft_tokens
        found["accepted tokens"] += step.accepted_tokens
        for position, accepted in enumerate(step.accepted_per_position or []):
            name = f"accepted at position {position}"
            found[name] = found.get(name, 0) + accepted
    return found, unknown


# --- between runs -------------------------------------------------------------------------------


def _judge_pair(off: _Arm, on: _Arm) -> Iterator[Finding]:
    """The first call of each request that differs between replay off and replay on."""
    streams = (off.run.ranks[off.rank], on.run.ranks[on.rank])
    if any(stream.dropped for stream in streams):
        return
    for request in off.sampled | on.sampled:
        finding = _calls_part(request, off, on)
        if finding is not None:
            yield finding


def _calls_part(request: str, off: _Arm, on: _Arm) -> Finding | None:
    row = 0
    # A call in flight at the end may be there in one run only; where both made it, it is the same.
    for a, b in zip(off.sampled.get(request, []), on.sampled.get(request, []), strict=False):
        if a.verified != b.verified:
            return _finding(
                f"expected {_told(a)} as with replay off (line {a.line} of "
                f"{off.run.ranks[off.rank].path}), found {_told(b)} with replay on",
                place(on.run, b, row),
            )
        row += len(b.sampled)
    theirs, ours = off.counted(request), on.counted(request)
    certain = off.whole and on.whole and ended(off.run) and ended(on.run)
    if certain and len(theirs) != len(ours):
        where = Location(file=on.run.ranks[on.rank].path, run=on.run.id, request=request, row=row)
        return _finding(
            f"expected {counted(len(theirs), 'sampling call')} as with replay off, found "
            f"{len(ours)} with replay on",
            where,
        )
    return None


def _told(call: Call) -> str:
    return (
        f"drafts {tokens(call.drafts)} -> sampled {tokens(call.sampled)}, "
        f"{call.verified.rejected} rejected"
    )


# --- measures -----------------------------------------------------------------------------------


def _measure(judgement: Judgement, arm: _Arm) -> None:
    tally = arm.tally()
    drawn = {r: sum(len(call.sampled) for call in arm.sampled.get(r, [])) for r in arm.outputs}
    judgement.measured |= {
        "rows": sum(min(len(o.rows), drawn[r]) for r, o in arm.outputs.items()),
        "verifications": tally.drafts,
        "accepted": tally.accepted,
        "recovered": tally.recovered,
        "bonus": tally.bonus,
        "preempted": sum(step.preempted or 0 for step in _steps(arm.run)),
    }
    pairs = zip_longest(
        tally.accepted_by_position or [], tally.proposed_by_position or [], fillvalue=0
    )
    judgement.notes["acceptance by position"] = " ".join(f"{a}/{p}" for a, p in pairs) or "none"


ACCEPTANCE = Checker(
    name="acceptance",
    roles=(),
    needs=("run", "outputs", "steps", "ranks"),
    seams=("model_runner.execute_model", "model_runner.sample", "verification"),
    function=check_acceptance,
)

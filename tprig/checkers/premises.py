"""Whether what ran is what a claim is about: its size, its arm, and no fault planted unasked.

A plan casts runs in roles. That a run was what its role says, the engine's own records must bear
out: what it was asked for (`spec.json`) and what it said it does (`effective.json`). What does not
fit proves nothing about the claim, so that it becomes `unknown`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from tprig.checkers.checker import Checker, Runs
from tprig.checkers.determinism import pairs
from tprig.evidence import Arm, Claim, Effective, Run
from tprig.history import RunHistory

SIZES: Mapping[str, int] = {"tp1": 1, "tp2": 2}
"""Role -> tensor-parallel size; other roles have the claim's."""
REPLAYS: Mapping[str, bool] = {"off": False, "on": True}
"""Last word of a role -> whether sampling-mask replay is on; other roles may have either."""

_MAY_DIFFER: Mapping[frozenset[str], frozenset[str]] = {
    frozenset({"off", "on"}): frozenset({"return_sampling_mask"}),
    frozenset({"tp1", "tp2"}): frozenset(
        {"tensor_parallel_size", "distributed_executor_backend", "disable_custom_all_reduce"}
    ),
}
"""Roles that are held against each other -> the engine arguments that are not the same."""

IMPORTED = "imported"
"""The role of what other programs recorded: no engine of ours says what they were."""
REFUSED, GATES = "offence", "gate"
"""The role, and the checker, of an engine that must not start: it has told nothing of itself."""
FAULTS_WANTED = {"caught", "caught_lost", "caught_parity", "cost", "located"}
"""Checkers whose claims may be about planted faults, and which hold them against the plan."""


def premises(claim: Claim, checker: Checker, runs: Runs) -> list[str]:
    """What of the runs is not as the claim has it; empty when all is."""
    found: list[str] = []
    if len(set(claim.runs.values())) < len(claim.runs):
        found.append("the claim casts one run in several roles")
    for role, run in runs.items():
        if role == IMPORTED or (role == REFUSED and checker.name == GATES):
            continue
        found += _engine(claim, role, run)
        if run.run is not None:
            found += _recorded(checker, run.run)
    return [*found, *_unlike(runs)]


def _engine(claim: Claim, role: str, run: RunHistory) -> Iterator[str]:
    arm = run.engine.arm if run.engine is not None else None
    effective = run.engine.effective if run.engine is not None else None
    if arm is None:
        yield f"spec.json of the engine of run {run.id} is not there"
    if effective is None:
        yield f"effective.json of the engine of run {run.id} is not there"
    if arm is None or effective is None:
        return
    yield from _size(SIZES.get(role, claim.tensor_parallel_size), run, arm, effective)
    replays = REPLAYS.get(role.rpartition("-")[2])
    if replays is not None:
        yield from _replay(replays, run.id, arm, effective)


def _size(size: int, run: RunHistory, arm: Arm, effective: Effective) -> Iterator[str]:
    streams = run.run.rank_streams if run.run is not None else size
    config = effective.config.get("parallel.tensor_parallel_size")
    found = {
        "spec.json": str(arm.tensor_parallel_size),
        "effective.json": str(config),
        "run.json": str(streams),
    }
    for file, told in found.items():
        if told != str(size):
            yield f"run {run.id}: expected tensor-parallel size {size}, found {told} in {file}"


def _replay(wanted: bool, run: str, arm: Arm, effective: Effective) -> Iterator[str]:  # noqa: FBT001
    asked = _value(arm, "return_sampling_mask") is True
    does = effective.config.get("model.return_sampling_mask") == "True"
    for file, found in (("spec.json", asked), ("effective.json", does)):
        if found is not wanted:
            yield f"run {run}: expected replay {_word(wanted)}, found it {_word(found)} in {file}"


def _word(on: bool) -> str:  # noqa: FBT001
    return "on" if on else "off"


def _recorded(checker: Checker, run: Run) -> Iterator[str]:
    if run.faults and checker.name not in FAULTS_WANTED:
        yield f"run {run.id}: expected no planted fault, found {', '.join(run.faults)}"
    # A seam has a dot in its name, a recorder has none.
    names = {name.partition("?")[0] for name in run.recorders}
    for recorder in (seam for seam in checker.seams if "." not in seam):
        if recorder not in names:
            yield f"run {run.id}: expected {recorder} among its recorders, found {run.recorders}"


def _unlike(runs: Runs) -> Iterator[str]:
    """Runs that are held against each other differ in nothing but what is compared."""
    held = [(*pair, frozenset[str]()) for pair in pairs(runs)]
    if (may_differ := _MAY_DIFFER.get(frozenset(runs))) is not None:
        first, second = runs.values()
        held.append((first, second, may_differ))
    for first, second, but in held:
        ours, theirs = _facts(first, but), _facts(second, but)
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                yield (
                    f"expected runs {first.id} and {second.id} to agree in {name}, found "
                    f"{ours.get(name)} and {theirs.get(name)}"
                )


def _facts(run: RunHistory, but: frozenset[str]) -> dict[str, object]:
    arm = run.engine.arm if run.engine is not None else None
    effective = run.engine.effective if run.engine is not None else None
    facts: dict[str, object] = {}
    if arm is not None:
        facts |= {name: _value(arm, name) for name in arm.engine_args if name not in but}
        facts |= {"platform": arm.platform, "checkpoint": arm.model_digest, "tree": arm.tree}
        facts |= {"interpreter": arm.python, "core process": arm.core_process}
    if effective is not None:
        facts["vLLM version"] = effective.vllm_version
        if "tensor_parallel_size" not in but:
            # Other ranks, other modules: the digest is over those that were imported.
            facts["vLLM digest"] = effective.vllm_digest
    return facts


def _value(arm: Arm, name: str) -> object:
    raw = arm.engine_args.get(name)
    return None if raw is None else msgspec.json.decode(raw)

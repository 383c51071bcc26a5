"""What attempts and bundles of base and head have shown, as observations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ci import events
from ci.attribution import ENVIRONMENT, Failure, Observation, Side, signature
from ci.errors import CiError
from ci.ledger import FAILURES, attempt_of
from tprig import evidence
from tprig.bundle import Bundle, BundleError, load
from tprig.judged import judge_again
from tprig.report.results import results

NO_CLAIM = "test"
"""The anomaly of a failure that no claim of a bundle names."""


def observe(side: Side, folder: Path) -> list[Observation]:
    """Read one run: a bundle, or a step's attempt (which may hold one).

    Raises:
        CiError: it is neither, or its evidence is damaged.
    """
    stream = folder / events.EVENTS_FILE
    try:
        if stream.is_file():
            inner = folder / "bundle"
            bundle = load(inner) if inner.is_dir() else None
            return list(_of_attempt(side, stream, _failures(bundle)))
        bundle = load(folder)
        if bundle.plan is None:
            raise BundleError("it holds no plan")  # noqa: TRY301
        return list(_of_bundle(side, bundle))
    except (BundleError, OSError, ValueError) as error:
        raise CiError(
            expected=f"a bundle or a step's attempt in {folder}",
            found=str(error),
            rule="only what can be read and is whole tells base from head",
            remedy="name the folder of a run: one --base or --head for each",
        ) from None


def _failures(bundle: Bundle | None) -> dict[str, set[Failure]]:
    """Test -> the failures that its claims name, judged again."""
    found: dict[str, set[Failure]] = {}
    if bundle is None or bundle.plan is None:
        return found
    verdicts = judge_again(bundle).verdicts
    if verdicts is None:
        raise BundleError("its evidence is damaged")
    tests = {claim.id: claim.test for claim in bundle.plan.claims}
    for verdict in verdicts.verdicts:
        if verdict.verdict == "fail":
            test = tests[verdict.claim]
            found.setdefault(test, set()).update(_of_verdict(test, verdict))
    return found


def _of_verdict(test: str, verdict: evidence.Verdict) -> Iterator[Failure]:
    """One failure for each anomaly: its first finding's message names what is wrong."""
    messages = {each.anomaly: each.message for each in reversed(verdict.findings)}
    for anomaly in verdict.failures or {NO_CLAIM: 1}:
        message = f"{verdict.claim}: {messages.get(anomaly, verdict.reason)}"
        yield Failure(test, anomaly, signature(message))


def _of_attempt(
    side: Side, stream: Path, failures: dict[str, set[Failure]]
) -> Iterator[Observation]:
    ledger = attempt_of(events.read(stream))
    for test in sorted(ledger.collected | ledger.finished.keys() | ledger.started.keys()):
        ended = ledger.finished.get(test)
        outcome = "interrupted" if ended is None else ended.outcome
        detail = "" if ended is None else ended.detail
        yield _observation(side, test, outcome, detail, failures.get(test, set()))


def _of_bundle(side: Side, bundle: Bundle) -> Iterator[Observation]:
    failures = _failures(bundle)
    for each in results(bundle):
        yield _observation(
            side, each.test, each.result, each.detail, failures.get(each.test, set())
        )


def _observation(
    side: Side, test: str, outcome: str, detail: str, claimed: set[Failure]
) -> Observation:
    if claimed:
        return Observation(side, test, tried=True, failures=frozenset(claimed))
    if outcome not in FAILURES:
        return Observation(side, test, tried=outcome == "passed")
    if ENVIRONMENT.search(detail):
        return Observation(side, test, tried=False, environment=True)
    failure = Failure(test, NO_CLAIM, signature(detail))
    return Observation(side, test, tried=True, failures=frozenset({failure}))

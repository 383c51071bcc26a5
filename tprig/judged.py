"""A bundle judged again from its raw evidence, beside the verdicts that were stored in it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from tprig import evidence
from tprig.bundle import Bundle
from tprig.bundle.files import encode_document
from tprig.checkers.verdict import exit_code, judge, worst

DAMAGED = 3


@dataclass(frozen=True)
class Change:
    """A stored verdict that the evidence does not bear out."""

    claim: str
    stored: str
    found: str
    """What the evidence gives, which is what counts."""


@dataclass(frozen=True)
class Judged:
    """What a bundle's evidence says."""

    verdicts: evidence.Verdicts | None
    """None when the bundle is damaged: nothing in it is then judged."""
    overall: evidence.VerdictName | None
    """The worst required claim; `unknown` where all pass in a run that did not come to its end."""
    changes: tuple[Change, ...]
    exit_code: int
    """0 pass, 1 fail, 2 unknown, 3 damaged."""


def judge_again(bundle: Bundle) -> Judged:
    """Judge a loaded bundle; what it stores as verdicts is compared, and trusted in nothing."""
    if bundle.damaged:
        return Judged(verdicts=None, overall=None, changes=(), exit_code=DAMAGED)
    found = verdicts_of(bundle)
    whole = overall(bundle, found)
    return Judged(found, whole, tuple(_changes(bundle.verdicts, found)), exit_code(whole))


def overall(bundle: Bundle, verdicts: evidence.Verdicts) -> evidence.VerdictName:
    """Return what the bundle as a whole says.

    A run that was interrupted can not pass, nor one of whose tests did not.
    """
    sound = is_whole(bundle) and not unpassed(bundle)
    return "unknown" if exit_code(verdicts.worst) == 0 and not sound else verdicts.worst


def unpassed(bundle: Bundle) -> dict[str, str]:
    """Planned tests that neither passed nor were skipped, by the ledger: what became of each.

    A test is skipped where all of its claims are not applicable, which the plan says.
    """
    events = bundle.ledger.records if bundle.ledger else ()
    ended = {event.test: event.outcome for event in events if event.event == "finished"}
    return {
        test: str(ended.get(test) or "did not finish")
        for test in (bundle.plan.tests if bundle.plan else ())
        if ended.get(test) not in ("passed", "skipped")
    }


def verdicts_of(bundle: Bundle) -> evidence.Verdicts:
    """Judge every claim of the bundle's plan; without a plan there is none, which is `unknown`."""
    verdicts = judge(bundle.plan, bundle.runs, version_match) if bundle.plan else []
    return evidence.Verdicts(
        version=evidence.SCHEMA_VERSION,
        plan_digest=plan_digest(bundle.plan) if bundle.plan else "",
        worst=worst(verdicts),
        verdicts=verdicts,
    )


def plan_digest(plan: evidence.Plan) -> str:
    """SHA-256 of the plan as a bundle holds it, in hex."""
    return hashlib.sha256(encode_document(plan)).hexdigest()


def version_match(specifiers: str, version: str) -> bool:
    """True when the version is in the PEP 440 specifier set; pre-releases count.

    Raises:
        ValueError: when one of the two is not in the form of PEP 440.
    """
    return SpecifierSet(specifiers).contains(version, prereleases=True)


def is_whole(bundle: Bundle) -> bool:
    """True when the run came to its end: sealed, and with all that is the bundle's own.

    What lacks of a run or an engine is for the claims that rest on it.
    """
    own = [problem for problem in bundle.problems if "/" not in problem.file]
    return bundle.sealed and not own


def _changes(stored: evidence.Verdicts | None, found: evidence.Verdicts) -> Iterator[Change]:
    if stored is None:
        return
    if stored.plan_digest != found.plan_digest:
        yield Change("(the plan)", stored.plan_digest, found.plan_digest)
    before = {verdict.claim: verdict for verdict in stored.verdicts}
    after = {verdict.claim: verdict for verdict in found.verdicts}
    for claim in {**before, **after}:
        told, is_so = _told(before.get(claim)), _told(after.get(claim))
        if told != is_so:
            yield Change(claim, told, is_so)
    if stored.worst != found.worst:
        yield Change("(all claims)", stored.worst, found.worst)


def _told(verdict: evidence.Verdict | None) -> str:
    if verdict is None:
        return "no verdict"
    counts = [f"{count} {what}" for what, count in sorted(verdict.measured.items())]
    counts += [f"{count} x {anomaly}" for anomaly, count in verdict.failures.items()]
    return ", ".join([verdict.verdict, *counts])

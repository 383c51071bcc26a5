"""From a plan's claims and the recorded runs to verdicts, and from those to one exit code.

* A finding is certain: it makes a claim `fail` even when other evidence is missing.
* Missing evidence, less measured than the claim's minima, a seam that moved, or a checker that
  raised make it `unknown`.
* A known issue of the vLLM version under test is strict: `expected` when it and nothing else
  shows, `fail` when it no longer does.
* A claim that its checker withdraws stays `withdrawn` only where the captured oracle and every
  mask claim at its tensor-parallel size pass; otherwise it is `unknown`.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase

from tprig.checkers import CHECKERS
from tprig.checkers.anomalies import ANOMALIES, blame, by_blame
from tprig.checkers.checker import Judgement
from tprig.checkers.determinism import partings, told
from tprig.checkers.emitted import ended
from tprig.checkers.gaps import cast, gaps, moved_seams
from tprig.checkers.premises import premises
from tprig.checkers.wording import counted
from tprig.evidence import Claim, Finding, KnownIssue, Plan, Verdict, VerdictName
from tprig.history import RunHistory

__all__ = ["Judgement", "exit_code", "judge", "judge_claim", "worst"]

FINDINGS_KEPT = 8
"""Findings that a verdict carries; `failures` counts all of them."""

VersionMatch = Callable[[str, str], bool]
"""(PEP 440 specifier set, version) -> whether the version is in the set."""

_WORST_FIRST: tuple[VerdictName, ...] = ("fail", "unknown", "expected", "pass")
_EXIT_CODES: Mapping[VerdictName, int] = {"pass": 0, "expected": 0, "fail": 1}


def judge(
    plan: Plan, runs: Mapping[str, RunHistory], version_match: VersionMatch | None = None
) -> list[Verdict]:
    """Judge every claim of a plan, in its order.

    Args:
        plan: what was to be decided.
        runs: run id -> its history.
        version_match: needed to apply known issues; without it, claims that one may concern are
            `unknown`.
    """
    verdicts = [judge_claim(c, runs, plan.known_issues, version_match) for c in plan.claims]
    return [
        _without_cover(verdict) if _uncovered(claim, verdict, plan.claims, verdicts) else verdict
        for claim, verdict in zip(plan.claims, verdicts, strict=True)
    ]


def judge_claim(
    claim: Claim,
    runs: Mapping[str, RunHistory],
    known_issues: Sequence[KnownIssue] = (),
    version_match: VersionMatch | None = None,
) -> Verdict:
    """Judge one claim by itself (whether `withdrawn` counts, `judge` decides)."""
    if claim.requirement == "not-applicable":
        reason = claim.reason or "no reason was given"
        return Verdict(claim=claim.id, verdict="not-applicable", reason=reason, measured={})
    checker = CHECKERS.get(claim.checker)
    if checker is None:
        known = ", ".join(sorted(CHECKERS))
        return _unknown(claim, f"expected a checker among {known}, found {claim.checker!r}")
    moved = moved_seams(checker, cast(claim, runs))
    if moved:
        return _unknown(claim, "; ".join(moved))
    try:
        judgement = checker.function(claim, cast(claim, runs))
        _consult(claim, runs, judgement)
        issues = _applicable(claim, runs, known_issues, version_match, judgement)
    except Exception as error:  # noqa: BLE001 - evidence may break a checker in any way
        text = "".join(traceback.format_exception(error))
        reason = f"the checker raised {type(error).__name__}: {error}"
        return _unknown(claim, reason, {"traceback": text})
    missing = [
        *gaps(claim, checker, runs),
        *premises(claim, checker, cast(claim, runs)),
        *judgement.missing,
        *_too_little(claim, judgement),
    ]
    return _decide(claim, judgement, list(dict.fromkeys(missing)), issues)


def worst(verdicts: Iterable[Verdict]) -> VerdictName:
    """The worst verdict that counts; `unknown` when none does.

    What is `not-applicable` does not count, nor what `judge` left `withdrawn`.
    """
    names = {verdict.verdict for verdict in verdicts}
    return next((name for name in _WORST_FIRST if name in names), "unknown")


def exit_code(verdict: VerdictName) -> int:
    """0 for `pass` and `expected`, 1 for `fail`, 2 for whatever leaves the matter open."""
    return _EXIT_CODES.get(verdict, 2)


def _unknown(claim: Claim, reason: str, notes: dict[str, str] | None = None) -> Verdict:
    return Verdict(claim=claim.id, verdict="unknown", reason=reason, measured={}, notes=notes or {})


def _too_little(claim: Claim, judgement: Judgement) -> list[str]:
    measured = judgement.measured
    short = [
        f"{what}: {measured.get(what, 0)} measured, at least {minimum} required"
        for what, minimum in claim.minima.items()
        if measured.get(what, 0) < minimum
    ]
    if not any(measured.values()) or measured.get("rows") == 0:
        short.append("nothing was judged")
    return short


def _applicable(
    claim: Claim,
    runs: Mapping[str, RunHistory],
    known_issues: Sequence[KnownIssue],
    version_match: VersionMatch | None,
    judgement: Judgement,
) -> list[KnownIssue]:
    """The known issues of this claim's vLLM versions; what can not be told is noted as missing."""
    candidates = [issue for issue in known_issues if fnmatchcase(claim.id, issue.claim)]
    engines = {run.id: run.engine for run in cast(claim, runs).values()}
    versions = {
        engine.effective.vllm_version
        for engine in engines.values()
        if engine is not None and engine.effective is not None
    }
    if candidates and (version_match is None or not versions):
        lacking = "way to match versions" if versions else "vLLM version of its runs"
        judgement.missing.append(f"no {lacking}: known issues may or may not apply")
        return []
    return [
        issue
        for issue in candidates
        if version_match is not None and any(version_match(issue.versions, v) for v in versions)
    ]


def _decide(
    claim: Claim, judgement: Judgement, missing: list[str], issues: list[KnownIssue]
) -> Verdict:
    findings = sorted(judgement.findings, key=lambda finding: blame(finding.anomaly))
    counts = Counter(finding.anomaly for finding in findings)
    name, reason = _name(judgement, findings, missing, issues)
    notes = dict(judgement.notes)
    if missing and name == "fail":
        notes["missing"] = "; ".join(missing)
    return Verdict(
        claim=claim.id,
        verdict=name,
        reason=reason,
        measured=judgement.measured,
        failures={anomaly: counts[anomaly] for anomaly in by_blame(counts)},
        findings=findings[:FINDINGS_KEPT],
        notes=notes,
    )


def _name(
    judgement: Judgement, findings: list[Finding], missing: list[str], issues: list[KnownIssue]
) -> tuple[VerdictName, str]:
    known = {issue.anomaly: issue for issue in issues}
    shown = {finding.anomaly for finding in findings}
    unforeseen = [finding for finding in findings if finding.anomaly not in known]
    certain = [finding for finding in unforeseen if not _leaves_open(finding.anomaly)]
    if certain:
        return "fail", _told(findings, certain[0])
    doubtful = [finding for finding in unforeseen if not _withdraws(finding.anomaly)]
    if doubtful:
        missing = [_told(findings, doubtful[0]), *missing]
    if missing:
        return "unknown", "; ".join(missing)
    for anomaly, issue in known.items():
        if anomaly not in shown:
            return "fail", (
                f"expected {anomaly}, a known issue of vLLM {issue.versions} ({issue.link}), found "
                f"that it no longer shows: remove it from the known issues"
            )
    if judgement.withdrawn is not None:
        return "withdrawn", judgement.withdrawn
    if findings:
        reasons = "; ".join(f"{a}: {known[a].reason} ({known[a].link})" for a in by_blame(shown))
        return "expected", reasons
    return "pass", ", ".join(f"{n} {what}" for what, n in judgement.measured.items())


def _leaves_open(anomaly: str) -> bool:
    return anomaly in ANOMALIES and ANOMALIES[anomaly].verdict != "fail"


def _withdraws(anomaly: str) -> bool:
    return anomaly in ANOMALIES and ANOMALIES[anomaly].verdict == "withdrawn"


def _told(findings: list[Finding], first: Finding) -> str:
    where, more = first.where, len(findings) - 1
    place = [f"request {where.request}"] if where.request is not None else []
    place += [f"row {where.row}"] if where.row is not None else []
    at = f" ({', '.join(place)})" if place else ""
    rest = f"; {counted(more, 'more finding')}" if more else ""
    return f"{first.anomaly}{at}: {first.message}{rest}"


# --- withdrawn claims ---------------------------------------------------------------------------


def _consult(claim: Claim, runs: Mapping[str, RunHistory], judgement: Judgement) -> None:
    """Withdraw what comparing engines has shown where equal engines are not equal either."""
    pairs = {role: runs[run] for role, run in claim.boundary.items() if run in runs}
    judgement.missing += [
        f"run {run} ({role}), by which equal runs are known to be equal, was never recorded whole"
        for role, run in claim.boundary.items()
        if run not in runs or not ended(runs[run])
    ]
    parted = partings(pairs)
    if not parted:
        return
    judgement.withdrawn = told(parted, len(pairs) // 2)
    if judgement.compared:
        judgement.notes["withdrawn findings"] = "; ".join(f.message for f in judgement.compared)
    judgement.findings = [f for f in judgement.findings if f not in judgement.compared]


def _uncovered(
    claim: Claim, verdict: Verdict, claims: Sequence[Claim], verdicts: Sequence[Verdict]
) -> bool:
    """True for a withdrawn claim that nothing exact stands in for."""
    if verdict.verdict != "withdrawn":
        return False
    size = claim.tensor_parallel_size
    names = {
        checker: [
            v.verdict
            for c, v in zip(claims, verdicts, strict=True)
            if c.checker == checker and c.tensor_parallel_size == size
        ]
        for checker in ("oracle", "masks")
    }
    masks = [name for name in names["masks"] if name != "not-applicable"]
    return "pass" not in names["oracle"] or not masks or any(name != "pass" for name in masks)


def _without_cover(verdict: Verdict) -> Verdict:
    reason = (
        f"withdrawn ({verdict.reason}), and no passing oracle and mask claims at this "
        f"tensor-parallel size stand in for it"
    )
    return Verdict(
        claim=verdict.claim,
        verdict="unknown",
        reason=reason,
        measured=verdict.measured,
        notes=verdict.notes,
    )

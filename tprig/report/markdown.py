"""A bundle's verdicts as Markdown, short enough to paste into a pull request."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

from tprig import evidence
from tprig.bundle import Bundle
from tprig.judged import overall
from tprig.report import ab
from tprig.report.killed import kill_markdown, kills
from tprig.report.summary import rows_judged, tally
from tprig.report.text import code, one_line, place

SHOWN_COUNTER_EXAMPLES = 10
SHOWN_PROBLEMS = 10


def markdown(bundle: Bundle, verdicts: evidence.Verdicts | None) -> str:
    """Return the page: the overall verdict, what was tested, every claim, how to check it again.

    Every word that comes from the bundle stands in a code span, where it is inert.

    Args:
        bundle: As it was loaded.
        verdicts: As judged from that bundle's evidence; None when it is damaged, and so not judged.
    """
    parts = [_heading(bundle, verdicts), _problems(bundle)]
    if verdicts is not None:
        planned = bundle.plan.claims if bundle.plan else []
        parts += [_tested(bundle), _claims(bundle, verdicts), ab.page(bundle)]
        parts.append(_counter_examples(verdicts))
        parts.append(kill_markdown(list(kills(planned, verdicts.verdicts))))
    parts.append(_again(bundle))
    return "\n\n".join(part for part in parts if part) + "\n"


def _heading(bundle: Bundle, verdicts: evidence.Verdicts | None) -> str:
    if verdicts is None:
        return "## tprig: **the evidence is damaged**\n\nNothing of it was judged."
    interrupted = "" if bundle.sealed else ", of a run that was interrupted"
    whole = _marked(overall(bundle, verdicts))
    return f"## tprig: {whole}{interrupted}\n\n{tally(verdicts.verdicts)}"


def _marked(verdict: evidence.VerdictName) -> str:
    return f"**{verdict}**" if verdict in {"fail", "unknown"} else verdict


def _problems(bundle: Bundle) -> str:
    lines = [
        f"- {problem.kind}: {code(problem.file)} {code(problem.message)}"
        for problem in sorted(bundle.problems, key=lambda problem: problem.kind != "damaged")
    ]
    return "\n".join(_cut(lines, SHOWN_PROBLEMS, "problems"))


def _tested(bundle: Bundle) -> str:
    rows = [f"| {name} | {value} |" for name, value in _facts(bundle) if value]
    return "\n".join(["| tested | |", "|---|---|", *rows]) if rows else ""


def _facts(bundle: Bundle) -> Iterator[tuple[str, str]]:
    effectives = [e.effective for e in bundle.engines.values() if e.effective is not None]
    tested = [(e.arm, e.effective) for e in bundle.engines.values() if e.arm and e.effective]
    arms = [e.arm for e in bundle.engines.values() if e.arm is not None]
    yield "vLLM", _cells(e.vllm_version for e in effectives)
    yield "vLLM files imported", _cells(_imported(arm, effective) for arm, effective in tested)
    environment, plan = bundle.environment, bundle.plan
    if environment is not None and environment.tree is not None:
        yield "tree", _cells([_commit(environment.tree)])
    yield "checkpoint", _cells(_short(arm.model_digest) for arm in arms)
    yield "tensor parallel sizes", _cells(str(arm.tensor_parallel_size) for arm in arms)
    if plan is not None:
        yield "platform", _cells([plan.platform])
        yield "workload", _cells([f"profile {plan.profile}, seed {plan.seed}, {plan.created}"])
    yield "devices", _cells(device for e in effectives for device in e.devices)
    if environment is not None:
        yield "machine", _cells([_machine(environment)])
        yield "tprig", _cells([f"{environment.tprig_version}, {_commit(environment.tprig)}"])


def _imported(arm: evidence.Arm, effective: evidence.Effective) -> str:
    """Another size imports other files of the same vLLM, which gives another digest."""
    return f"TP{arm.tensor_parallel_size}: {_short(effective.vllm_digest)}"


def _cells(values: Iterable[str]) -> str:
    return ", ".join(code(value, cell=True) for value in dict.fromkeys(values))


def _short(sha256: str) -> str:
    return f"sha256 {sha256[:16]}"


def _commit(repository: evidence.Repository) -> str:
    base = f", base {repository.base[:12]}" if repository.base else ""
    changes = {True: ", uncommitted changes", False: "", None: ", cleanliness unknown"}
    digest = f" ({_short(repository.diff_digest)})" if repository.diff_digest else ""
    commit = repository.commit[:12] if repository.commit else "unknown"
    return f"commit {commit}{base}{changes[repository.dirty]}{digest}"


def _machine(environment: evidence.Environment) -> str:
    gpus = ", ".join(f"{gpu.name} (driver {gpu.driver})" for gpu in environment.gpus)
    shared = ", several ranks a device" if environment.oversubscribed else ""
    return f"{environment.cpu_count} cores of {environment.cpu}, {gpus or 'no GPU'}{shared}"


def _claims(bundle: Bundle, verdicts: evidence.Verdicts) -> str:
    claims = bundle.plan.claims if bundle.plan else []
    sizes = {claim.id: str(claim.tensor_parallel_size) for claim in claims}
    lines = ["| claim | TP | verdict | rows | first failure |", "|---|---:|---|---:|---|"]
    for verdict in verdicts.verdicts:
        size = sizes.get(verdict.claim, "-")
        lines.append(
            f"| {code(verdict.claim, cell=True)} | {size} | {_marked(verdict.verdict)} "
            f"| {rows_judged(verdict)} | {_first_failure(verdict)} |"
        )
    return "\n".join(lines)


def _first_failure(verdict: evidence.Verdict) -> str:
    if verdict.failures:
        anomaly, count = next(iter(verdict.failures.items()))
        return f"{code(anomaly, cell=True)} ({count})"
    if verdict.findings:
        return code(verdict.findings[0].anomaly, cell=True)
    return "" if verdict.verdict == "pass" else code(verdict.reason, cell=True)


def _counter_examples(verdicts: evidence.Verdicts) -> str:
    lines = [
        f"- {code(verdict.claim)}: {code(finding.anomaly)} at {code(place(finding.where))}  \n"
        f"  {code(finding.message)}"
        for verdict in verdicts.verdicts
        for finding in verdict.findings[:1]
    ]
    if not lines:
        return ""
    shown = _cut(lines, SHOWN_COUNTER_EXAMPLES, "claims with a counter-example")
    return "\n".join(["First counter-example of each claim:", "", *shown])


def _cut(lines: list[str], limit: int, what: str) -> list[str]:
    more = len(lines) - limit
    return lines if more <= 0 else [*lines[:limit], f"- and {more} more {what}"]


def _again(bundle: Bundle) -> str:
    command = one_line(f"pip install . && tprig check {shlex.quote(bundle.root.name or '.')}")
    sound = bundle.digest is not None and not bundle.damaged
    told = f", which must print the root digest {code(bundle.digest or '')}" if sound else ""
    return (
        "To judge it again, without a GPU, vLLM or torch: take the bundle's folder from whoever "
        f"wrote this, and in a checkout of tprig run{told}:\n\n```sh\n{command}\n```"
    )

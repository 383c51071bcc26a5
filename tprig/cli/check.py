"""`tprig check BUNDLE`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.text import Text

from tprig import evidence
from tprig.bundle import Bundle, Problem
from tprig.checkers.anomalies import ANOMALIES, blame
from tprig.cli.opening import opened
from tprig.cli.terminal import show, write_json
from tprig.judged import DAMAGED, Change, Judged, judge_again, unpassed
from tprig.report.summary import counter_example, summary
from tprig.report.text import one_line
from tprig.sign import SignatureError, signature_path, verify


@dataclass(frozen=True)
class Signers:
    """Who must have signed the bundle.

    Attributes:
        allowed: ssh-keygen's file of allowed signers.
        signature: by default `<bundle>.sig`, beside the bundle.
    """

    allowed: Path
    signature: Path | None = None


def run(root: Path, *, as_json: bool, signers: Signers | None = None) -> int:
    """Check a bundle and return the exit code: 3 also where nobody asked for has signed it."""
    bundle = opened(root)
    judged = judge_again(bundle)
    signed_by, refusal = None, None
    if signers is not None:
        try:
            signature = signers.signature or signature_path(root)
            signed_by = verify(bundle, signature, signers.allowed)
        except SignatureError as error:
            refusal = one_line(str(error))
    if as_json:
        write_json(_document(bundle, judged) | {"signed_by": signed_by, "not_signed": refusal})
    else:
        show(*_parts(bundle, judged), *_signature(signed_by, refusal))
    return judged.exit_code if refusal is None else DAMAGED


def _signature(signed_by: str | None, refusal: str | None) -> Iterator[Text]:
    if signed_by is not None:
        yield Text(f"signed by {one_line(signed_by)}", style="green")
    if refusal is not None:
        yield Text(f"not vouched for: {refusal}", style="bold red")


def _document(bundle: Bundle, judged: Judged) -> dict[str, object]:
    verdicts = judged.verdicts
    return {
        "bundle": one_line(str(bundle.root)),
        "digest": bundle.digest,
        "sealed": bundle.sealed,
        "exit_code": judged.exit_code,
        "overall": judged.overall,
        "problems": bundle.problems,
        "verdicts": verdicts.verdicts if verdicts else [],
        "stored_verdicts_differ": judged.changes,
    }


def _parts(bundle: Bundle, judged: Judged) -> Iterator[RenderableType]:
    yield from _problems(bundle.problems)
    if judged.verdicts is not None:
        yield summary(judged.verdicts.verdicts)
        yield from first_counter_example(judged.verdicts.verdicts)
        for test, outcome in unpassed(bundle).items():
            yield Text(one_line(f"by the ledger: {test}: {outcome}"), style="yellow")
    yield from _stored(judged.changes)
    yield Text(_conclusion(bundle, judged), style="bold")


PROBLEMS_SHOWN = 20


def _problems(problems: Sequence[Problem]) -> Iterator[Text]:
    for problem in problems[:PROBLEMS_SHOWN]:
        style = "bold red" if problem.kind == "damaged" else "yellow"
        yield Text(one_line(str(problem)), style=style)
    if len(problems) > PROBLEMS_SHOWN:
        yield Text(f"and {len(problems) - PROBLEMS_SHOWN} more; --json lists them all")


def first_counter_example(verdicts: Sequence[evidence.Verdict]) -> Iterator[RenderableType]:
    """The first finding of the most specific anomaly, with what the anomaly means."""
    failing = [v for v in verdicts if v.verdict == "fail" and v.findings]
    if not failing:
        return
    # The most specific cause explains the others.
    first = min(failing, key=lambda verdict: blame(verdict.findings[0].anomaly))
    shown = counter_example(first)
    if shown is not None:
        yield shown
    anomaly = ANOMALIES.get(first.findings[0].anomaly)
    if anomaly is not None:
        yield Text(f"  {anomaly.name}: {anomaly.definition}\n  look at: {anomaly.look_at}")


def _stored(changes: Sequence[Change]) -> Iterator[Text]:
    for change in changes:
        yield Text(
            one_line(
                f"stored verdict differs: {change.claim}: stored {change.stored}; the evidence "
                f"gives {change.found}"
            ),
            style="yellow",
        )


def _conclusion(bundle: Bundle, judged: Judged) -> str:
    name = one_line(str(bundle.root))
    if judged.verdicts is None:
        return f"damaged: {name} was changed or is malformed; nothing in it was judged"
    interrupted = "" if bundle.sealed else ", of a run that was interrupted"
    open_end = judged.overall != judged.verdicts.worst
    rest = "; what it holds passes, but it is not whole" if open_end else ""
    digest = f"; root digest {bundle.digest}" if bundle.digest else ""
    return f"{judged.overall}: {name}{interrupted}{rest}{digest}"

from rich.console import Console, RenderableType

from tprig import evidence
from tprig.report.summary import STYLES, counter_example, summary, tally

FINDING = evidence.Finding(
    anomaly="mask.membership",
    message="expected token 5 in its support, found it outside",
    where=evidence.Location(file="runs/on/outputs.jsonl", line=4, run="on", request="r1", row=2),
)


def verdict(
    name: evidence.VerdictName, claim: str = "masks/tp2", *, rows: int | None = 7
) -> evidence.Verdict:
    findings = [FINDING] if name in {"fail", "expected"} else []
    return evidence.Verdict(
        claim=claim,
        verdict=name,
        reason=f"because it is {name}",
        measured={} if rows is None else {"rows": rows},
        failures={"mask.membership": 3} if findings else {},
        findings=findings,
    )


def shown(part: RenderableType) -> str:
    console = Console(width=200, force_terminal=False)
    with console.capture() as capture:
        console.print(part)
    return capture.get()


def test_every_claim_has_a_line_and_the_tally_comes_last() -> None:
    names: list[evidence.VerdictName] = list(STYLES)
    lines = shown(summary([verdict(name, f"claim-{name}") for name in names])).splitlines()
    for name, line in zip(names, lines[1:], strict=False):
        assert line.split()[:3] == [f"claim-{name}", name, "7"]
    assert lines[-1] == ("1 fail, 1 unknown, 1 withdrawn, 1 expected, 1 pass, 1 not-applicable")


def test_a_failure_shows_its_anomaly_and_place_and_what_is_open_its_reason() -> None:
    printed = shown(summary([verdict("fail"), verdict("unknown"), verdict("pass")]))
    assert "mask.membership at runs/on/outputs.jsonl:4 (run on, request r1, row 2)" in printed
    assert "because it is unknown" in printed
    assert "because it is pass" not in printed


def test_what_counts_no_rows_shows_a_dash_and_not_zero() -> None:
    line = shown(summary([verdict("pass", rows=None)])).splitlines()[1]
    assert line.split() == ["masks/tp2", "pass", "-"]


def test_no_verdicts_are_said() -> None:
    assert tally([]) == "no claims"
    assert "no claims" in shown(summary([]))


def test_a_counter_example_is_shown_in_full() -> None:
    part = counter_example(verdict("fail"))
    assert part is not None
    assert shown(part).splitlines() == [
        "mask.membership in masks/tp2",
        "  expected token 5 in its support, found it outside",
        "  at runs/on/outputs.jsonl:4 (run on, request r1, row 2)",
    ]
    assert counter_example(verdict("pass")) is None


def test_markup_and_escapes_are_shown_as_they_are() -> None:
    printed = shown(summary([verdict("pass", "[bold]x[/] \x1b[31m")]))
    assert r"[bold]x[/] \x1b[31m" in printed

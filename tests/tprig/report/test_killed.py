"""The kill matrix: a line for each planted fault, and none for any other claim."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from tests.fakes import histories
from tests.tprig.checkers import edits
from tests.tprig.checkers.examples import OFF, ON, caught_claim, struck
from tprig import evidence
from tprig.checkers.verdict import judge_claim
from tprig.history import RunHistory
from tprig.report.killed import Kill, kill_markdown, kill_table, kills

MASKS = histories.claim("masks", {"on": "on"})
CAUGHT = msgspec.structs.replace(caught_claim(), id="tp1-mask-token-cut/caught")


def matrix(on: RunHistory) -> list[Kill]:
    claims = [MASKS, CAUGHT]
    return list(kills(claims, [judge_claim(claim, {"off": OFF, "on": on}) for claim in claims]))


def test_a_fault_that_is_caught_is_told_with_all_who_have_seen_it() -> None:
    assert matrix(struck(edits.edit_support(ON, "a", 2, [4, 11]))) == [
        Kill(
            fault="tp1-mask-token-cut",
            verdict="pass",
            anomaly="mask.membership",
            seen="masks: mask.membership (1)",
            detection="0 steps, 0.00 s",
            run="on",
        )
    ]


def test_a_fault_that_survives_is_in_the_matrix() -> None:
    (kill,) = matrix(struck(ON))
    assert (kill.verdict, kill.anomaly, kill.seen, kill.detection) == ("fail", None, None, None)
    assert kill.cells == ("tp1-mask-token-cut", "fail", "-", "-", "-", "on")


def test_who_sees_more_than_one_thing_is_told_by_what_it_would_blame() -> None:
    on = edits.edit_support(struck(edits.edit_row(ON, "a", 1, rank=2)), "a", 2, [4, 11])
    (kill,) = matrix(on)
    assert kill.seen == "masks: mask.membership (1), outputs: output.ranks (1)"


def test_a_claim_that_was_not_judged_is_left_out() -> None:
    assert list(kills([CAUGHT], [])) == []


def test_the_page_has_the_matrix_where_faults_were_planted() -> None:
    found = matrix(struck(edits.edit_support(ON, "a", 2, [4, 11])))
    text = kill_markdown(found)
    assert "| `tp1-mask-token-cut` | `pass` | `mask.membership` |" in text
    assert kill_markdown([]) == ""


def test_a_bundle_s_words_are_inert_on_a_terminal() -> None:
    out = io.StringIO()
    hostile = Kill("tp1\x1b[2J", "pass", "[red]", None, None, "on")
    Console(file=out, width=120).print(kill_table([hostile]))
    assert "\x1b" not in out.getvalue()
    assert "[red]" in out.getvalue()


def test_verdicts_hold_all_that_the_matrix_needs() -> None:
    """So that it can be made of a bundle that somebody else has written."""
    verdict = judge_claim(CAUGHT, {"off": OFF, "on": struck(ON)})
    again = msgspec.json.decode(msgspec.json.encode(verdict), type=evidence.Verdict)
    assert list(kills([CAUGHT], [again])) == list(kills([CAUGHT], [verdict]))

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tprig import evidence
from tprig.report.text import MESSAGE_LIMIT, code, one_line, place


@pytest.mark.parametrize(
    ("foreign", "shown"),
    [
        ("plain text", "plain text"),
        ("two\nlines\tand  spaces", "two lines and spaces"),
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("a\u202eb\u200bc", r"a\u202eb\u200bc"),
        ("\ud800", r"\ud800"),
        ("naïve 日本", "naïve 日本"),
    ],
)
def test_what_does_not_print_is_escaped(foreign: str, shown: str) -> None:
    assert one_line(foreign) == shown


@given(st.text())
def test_anything_comes_out_printable_and_encodable(foreign: str) -> None:
    assert one_line(foreign).isprintable()
    one_line(foreign).encode("utf-8")


@pytest.mark.parametrize(
    ("foreign", "span"),
    [
        ("plain", "`plain`"),
        ("", "`(empty)`"),
        ("a `b` c", "``a `b` c``"),
        ("`", "`` ` ``"),
        ("``x", "``` ``x ```"),
        ("<script>@user #1 https://x.y", "`<script>@user #1 https://x.y`"),
    ],
)
def test_foreign_words_stay_within_a_code_span(foreign: str, span: str) -> None:
    assert code(foreign) == span


@given(st.text(alphabet="`|\\\n ab"))
def test_nothing_leaves_a_code_span_or_a_cell(foreign: str) -> None:
    span = code(foreign, cell=True)
    fence = re.match("`+", span)
    assert fence is not None
    inner = span[len(fence[0]) : -len(fence[0])]
    assert span.endswith(fence[0])
    assert fence[0] not in re.findall("`+", inner)
    assert not inner.startswith("`")
    assert not inner.endswith("`")
    assert "|" not in span
    assert "\n" not in span


def test_a_long_message_is_cut() -> None:
    assert len(code("x" * 10_000)) == MESSAGE_LIMIT + 2


def test_a_place_names_all_that_is_known() -> None:
    where = evidence.Location(file="runs/on/outputs.jsonl", line=7, run="on", request="q3", row=2)
    assert place(where) == "runs/on/outputs.jsonl:7 (run on, request q3, row 2)"
    assert place(evidence.Location(file="engines/e/events.jsonl")) == "engines/e/events.jsonl"

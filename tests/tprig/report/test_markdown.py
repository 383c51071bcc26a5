import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.fakes import bundles, histories
from tprig import evidence
from tprig.bundle import Bundle, Problem, load
from tprig.judged import verdicts_of
from tprig.report.markdown import SHOWN_COUNTER_EXAMPLES, markdown

HOSTILE = "<img src=x onerror=alert(1)> @everyone #1 [a](https://x.y) | `code` \n# x \x1b[31m"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load(bundles.pair(tmp_path_factory.mktemp("markdown") / "bundle"))


def page(bundle: Bundle) -> str:
    return markdown(bundle, verdicts_of(bundle))


def failing(claim: str, finding: evidence.Finding) -> evidence.Verdict:
    return evidence.Verdict(
        claim=claim,
        verdict="fail",
        reason="",
        measured={"rows": 3},
        failures={finding.anomaly: 2},
        findings=[finding, finding],
    )


def finding(message: str = "expected 1, found 2") -> evidence.Finding:
    where = evidence.Location(file="runs/on/outputs.jsonl", line=4, request="r1", row=2)
    return evidence.Finding(anomaly="mask.membership", message=message, where=where)


def verdicts(*of: evidence.Verdict) -> evidence.Verdicts:
    return evidence.Verdicts(version=1, plan_digest="", worst="fail", verdicts=list(of))


def outside_code(text: str) -> str:
    """What of a page is not within a code span or block, by the rules of CommonMark."""
    text = re.sub(r"^```sh\n.*\n```$", "", text, flags=re.MULTILINE)
    return re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", text)


def test_the_page_says_what_was_tested_and_how_it_came_out(bundle: Bundle) -> None:
    text = page(bundle)
    assert text.startswith("## tprig: pass\n\n4 pass\n")
    assert "| vLLM | `0.32.0` |" in text
    assert "| vLLM files imported | `TP1: sha256 1111111111111111` |" in text
    assert "| tensor parallel sizes | `1` |" in text
    assert "| platform | `cpu` |" in text
    assert f"| tree | `commit {'b' * 12}, base {'c' * 12}, uncommitted changes" in text
    assert "| `masks/tp1` | 1 | pass | 15 |  |" in text
    assert f"must print the root digest `{bundle.digest}`" in text
    assert text.endswith("```sh\npip install . && tprig check bundle\n```\n")


def test_a_failing_claim_shows_its_first_counter_example_once(bundle: Bundle) -> None:
    text = markdown(bundle, verdicts(failing("masks/tp1", finding())))
    assert text.startswith("## tprig: **fail**\n")
    assert "| `masks/tp1` | 1 | **fail** | 3 | `mask.membership` (2) |" in text
    assert text.count("`expected 1, found 2`") == 1
    assert "at `runs/on/outputs.jsonl:4 (request r1, row 2)`" in text


def test_it_stays_short_enough_to_paste(bundle: Bundle) -> None:
    many = [failing(f"claim{i}", finding("x" * 5_000)) for i in range(200)]
    text = markdown(bundle, verdicts(*many))
    assert text.count("\n- `claim") == SHOWN_COUNTER_EXAMPLES
    assert f"and {200 - SHOWN_COUNTER_EXAMPLES} more claims with a counter-example" in text
    assert len(text) < 65_536


def test_a_damaged_bundle_shows_what_is_damaged_and_nothing_else(bundle: Bundle) -> None:
    problems = (Problem("missing", "a", "is gone"), Problem("damaged", "b", "was changed"))
    text = markdown(replace(bundle, problems=problems), None)
    assert text.startswith("## tprig: **the evidence is damaged**\n")
    assert text.index("- damaged: `b` `was changed`") < text.index("- missing: `a` `is gone`")
    assert "0.32.0" not in text
    assert str(bundle.digest) not in text


def test_an_interrupted_run_does_not_pass(bundle: Bundle) -> None:
    text = page(replace(bundle, sealed=False, digest=None))
    assert text.startswith("## tprig: **unknown**, of a run that was interrupted\n")
    assert "root digest" not in text


def test_what_was_never_recorded_is_left_out() -> None:
    bare = Bundle(root=Path("bare"), sealed=False, problems=())
    text = page(bare)
    assert text.startswith("## tprig: **unknown**")
    assert "no claims" in text
    assert "tested" not in text


def test_nothing_foreign_leaves_its_code_span(bundle: Bundle) -> None:
    assert bundle.plan is not None
    assert bundle.environment is not None
    engine = bundle.engines["engine-on"]
    assert engine.effective is not None
    effective = msgspec.structs.replace(
        engine.effective, vllm_version=HOSTILE, vllm_digest=HOSTILE, devices=[HOSTILE]
    )
    tree = evidence.Repository(commit=HOSTILE, base=HOSTILE, dirty=True, diff_digest=HOSTILE)
    hostile = replace(
        bundle,
        root=Path("a\n```\n@all <b>"),
        problems=(Problem("missing", HOSTILE, HOSTILE),),
        plan=msgspec.structs.replace(bundle.plan, profile=HOSTILE, created=HOSTILE),
        environment=msgspec.structs.replace(bundle.environment, cpu=HOSTILE, tree=tree),
        engines={"e": replace(engine, effective=effective)},
    )
    where = evidence.Location(file=HOSTILE, run=HOSTILE, request=HOSTILE)
    bad = evidence.Finding(anomaly=HOSTILE, message=HOSTILE, where=where)
    unknown = evidence.Verdict(claim=HOSTILE, verdict="unknown", reason=HOSTILE, measured={})
    text = markdown(hostile, verdicts(failing(HOSTILE, bad), unknown))
    assert HOSTILE.split(" ", maxsplit=1)[0] in text
    for piece in ("<", "@", "#1", "https", "\x1b", "[a]"):
        assert piece not in outside_code(text)
    assert text.count("\n```\n") == 1  # the end of the one block that the page has


def test_tables_keep_their_columns_whatever_they_hold(bundle: Bundle) -> None:
    unknown = evidence.Verdict(claim="a|b", verdict="unknown", reason="c\\|d", measured={})
    rows = [
        line for line in markdown(bundle, verdicts(unknown)).splitlines() if line.startswith("| `a")
    ]
    assert len(rows) == 1
    assert rows[0].count("|") == 6


def test_sizes_and_versions_are_listed_once_each(tmp_path: Path) -> None:
    runs = histories.tp_pair(1, requests=2)
    claim = histories.claim("parity", {"tp1": "tp1", "tp2": "tp2"}, tp=2)
    text = page(load(bundles.write(tmp_path / "bundle", runs, histories.plan([claim]))))
    assert "| tensor parallel sizes | `1`, `2` |" in text
    assert text.count("0.32.0") == 1

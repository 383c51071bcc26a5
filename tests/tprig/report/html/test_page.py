"""The page of a bundle: what it shows, that nothing in it is live, and how a browser takes it."""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tests.fakes import bundles, collectives, histories
from tests.fakes.ranks import Rank
from tprig import evidence
from tprig.bundle import Bundle, load
from tprig.judged import verdicts_of
from tprig.report.html import html
from tprig.report.html.rows import drawn_rows
from tprig.report.html.timeline import timeline

HOSTILE = '"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m\u202e'
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
DEADLINE_S = 120


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    root = bundles.pair(tmp_path_factory.mktemp("html") / "bundle")
    line, _ = next(bundles.emissions(root, "on"))
    bundles.edit(root, "runs/on/outputs.jsonl", line, _take_token_out)
    return load(root)


def _take_token_out(record: dict[str, list[dict[str, int]]]) -> None:
    supports: list[list[int]] = record["supports"]  # type: ignore[assignment]
    supports[0].remove(record["rows"][0]["token_id"])


def parting() -> tuple[Rank, Rank]:
    first, second = Rank(0), Rank(1)
    for rank in (first, second):
        rank.step()
        for _ in range(12):
            rank.call("all_reduce", shape=[4, 128])
    first.call("all_gather", shape=[4, 64])
    second.call("all_reduce", shape=[4, 64])
    return first, second


def test_the_counter_example_is_drawn_with_its_support(broken: Bundle) -> None:
    page = html(broken, verdicts_of(broken))
    assert '<h1>tprig: <span class="v fail">fail</span></h1>' in page
    (wrong,) = re.findall(r'<tr class="wrong">.*?</tr>', page, re.DOTALL)
    assert '<span class="tok finite emitted">' in wrong
    assert broken.digest is not None
    assert broken.digest in page


def test_rows_around_the_place_are_drawn(broken: Bundle) -> None:
    verdicts = verdicts_of(broken).verdicts
    where = next(f.where for v in verdicts for f in v.findings)
    drawn = drawn_rows(broken, where)
    assert [row.row for row in drawn if row.wrong] == [where.row]
    assert drawn[0].tokens[0].kind == "finite"
    assert all(row.tokens[0].emitted for row in drawn)
    assert drawn_rows(broken, replace_where(where, request="nobody")) == []


def replace_where(where: evidence.Location, **fields: str) -> evidence.Location:
    return msgspec.structs.replace(where, **fields)


def test_the_ranks_are_drawn_around_the_place_where_they_part() -> None:
    drawn = timeline(collectives.history(parting()))
    assert drawn is not None
    assert drawn.differs
    assert drawn.first == 12 - 8
    apart = [(lane.rank, call.label) for lane in drawn.lanes for call in lane.calls if call.apart]
    assert apart == [(0, "all_gather 4x64"), (1, "all_reduce 4x64")]


def test_ranks_that_agree_are_drawn_to_their_end_and_none_is_apart() -> None:
    made = [Rank(rank) for rank in (0, 1)]
    for rank in made:
        rank.step()
        rank.call("all_reduce", shape=[1])
    drawn = timeline(collectives.history(made))
    assert drawn is not None
    assert not drawn.differs
    assert not any(call.apart for lane in drawn.lanes for call in lane.calls)
    assert timeline(collectives.history([Rank(0)])) is None


def test_a_damaged_bundle_shows_nothing_of_itself(broken: Bundle) -> None:
    page = html(replace(broken), None)
    assert "Nothing of it was judged" in page
    assert histories.VLLM_VERSION not in page


def test_words_of_a_bundle_are_never_live(broken: Bundle) -> None:
    verdicts = verdicts_of(broken)
    hostile = msgspec.structs.replace(
        verdicts.verdicts[0], claim=HOSTILE, reason=HOSTILE, notes={"caught": HOSTILE}
    )
    environment = msgspec.structs.replace(bundles.ENVIRONMENT, packages=[HOSTILE], cpu=HOSTILE)
    page = html(
        replace(broken, environment=environment),
        msgspec.structs.replace(verdicts, verdicts=[hostile]),
    )
    assert "<script" not in page
    assert "<img" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page


def test_the_page_names_nothing_elsewhere(broken: Bundle) -> None:
    page = html(broken, verdicts_of(broken))
    assert not re.findall(r"\b(?:src|href|action|data|srcset)\s*=|url\(|@import|<script", page)


def photographed(page: Path, shot: Path) -> tuple[list[str], list[str]]:
    """What the page said on the console, and what it asked for, in headless Chromium."""
    assert CHROMIUM is not None
    log = shot.with_suffix(".net.json")
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--no-first-run", "--disable-background-networking", "--disable-component-update",
            "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={shot.parent / 'profile'}",
            "--enable-logging=stderr", f"--log-net-log={log}", "--window-size=1200,1400",
            f"--screenshot={shot}", page.as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip
    console = [line for line in done.stderr.splitlines() if ":CONSOLE:" in line]
    asked = [
        event["params"]["url"]
        for event in json.loads(log.read_text())["events"]
        if "url" in event.get("params", {})
        # What the browser asks for by itself has no origin.
        and event["params"].get("initiator", "not an origin") != "not an origin"
    ]
    return console, asked


def size_of(png: Path) -> tuple[int, int]:
    data = png.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", data[16:24])
    return width, height


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
def test_a_browser_shows_it_without_a_word_or_a_request(broken: Bundle, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    page.write_text(html(broken, verdicts_of(broken)), encoding="utf-8")
    assert photographed(page, tmp_path / "page.png") == ([], [])
    # The same browser does tell of a page that is not so.
    other = tmp_path / "other.html"
    other.write_text("<script>nothing()</script><img src='http://example.invalid/x.png'>")
    console, asked = photographed(other, tmp_path / "other.png")
    assert any("nothing is not defined" in line for line in console)
    assert asked
    assert set(asked) == {"http://example.invalid/x.png"}
    assert size_of(tmp_path / "page.png") == size_of(tmp_path / "other.png") == (1200, 1400)
    # A page that shows nothing compresses to nearly nothing.
    sizes = [(tmp_path / f"{name}.png").stat().st_size for name in ("page", "other")]
    assert sizes[0] > 4 * sizes[1]

import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes import bundles, histories
from tprig.bundle import seal
from tprig.cli import main

Change = Callable[[dict[str, Any]], None]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle that passes; copy it before changing it."""
    return bundles.pair(tmp_path_factory.mktemp("sound") / "bundle")


@pytest.fixture
def copy(sound: Path, tmp_path: Path) -> Path:
    return shutil.copytree(sound, tmp_path / "bundle")


def check(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    code = main(["check", str(root)])
    printed = capsys.readouterr()
    assert printed.err == ""
    return code, printed.out


def check_json(root: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main(["check", str(root), "--json"])
    printed = capsys.readouterr()
    assert printed.err == ""
    document: dict[str, Any] = json.loads(printed.out)
    assert document["exit_code"] == code
    return code, document


def first_findings(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [v["findings"][0] for v in document["verdicts"] if v["verdict"] == "fail"]


def files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file())


def test_a_sound_bundle_passes(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, printed = check(sound, capsys)
    assert code == 0
    for claim in histories.claims():
        assert claim.id in printed
    assert "4 pass" in printed
    assert "differs" not in printed


def test_json_holds_what_the_table_shows(sound: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, document = check_json(sound, capsys)
    assert code == 0
    assert document["sealed"] is True
    assert document["overall"] == "pass"
    assert document["problems"] == document["stored_verdicts_differ"] == []
    assert [v["claim"] for v in document["verdicts"]] == [c.id for c in histories.claims()]
    assert len(document["digest"]) == 64


# --- integrity -------------------------------------------------------------------------------


def test_any_byte_changed_in_any_file_is_3_and_names_it(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(7)
    for path in files(copy):
        original = path.read_bytes()
        spots = {0, len(original) - 1, *(rng.randrange(len(original)) for _ in range(4))}
        for spot in sorted(spots):
            changed = bytearray(original)
            changed[spot] ^= 1 << rng.randrange(8)
            path.write_bytes(changed)
            code, printed = check(copy, capsys)
            assert code == 3
            assert f"damaged: {path.relative_to(copy)} " in printed
        path.write_bytes(original)
    assert check(copy, capsys)[0] == 0


@pytest.mark.parametrize("name", ["runs/on/outputs.jsonl", "plan.json", "verdicts.json"])
@pytest.mark.parametrize("change", ["cut", "append", "delete", "link"])
def test_a_file_cut_grown_gone_or_replaced_by_a_link_is_3(
    copy: Path, name: str, change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / name
    if change == "cut":
        os.truncate(path, path.stat().st_size - 1)
    elif change == "append":
        path.write_bytes(path.read_bytes() + b"\n")
    else:
        shutil.move(path, tmp_path / "moved")
    if change == "link":
        path.symlink_to(tmp_path / "moved")
    code, printed = check(copy, capsys)
    assert code == 3
    assert f"damaged: {name} " in printed


def test_a_file_that_the_manifest_does_not_know_is_3(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "runs" / "extra.json").write_text("{}", encoding="utf-8")
    code, printed = check(copy, capsys)
    assert code == 3
    assert "damaged: runs/extra.json " in printed


def entry(path: str) -> Change:
    return lambda manifest: manifest["files"][0].update(path=path)


@pytest.mark.parametrize(
    "change",
    [
        entry("../outside.json"),
        entry("/etc/passwd"),
        entry("a/../b"),
        entry("manifest.json"),
        entry("a\u0000b"),
        entry("x" * 513),
        lambda manifest: manifest.update(version=2),
        lambda manifest: manifest.update(version=10**30),
        lambda manifest: manifest.update(files=None),
        lambda manifest: manifest.update(root="0" * 64),
        lambda manifest: manifest.update(extra=1),
        lambda manifest: manifest["files"].append(manifest["files"][0]),
        lambda manifest: manifest["files"][0].update(size_bytes=-1),
        lambda manifest: manifest["files"][0].update(size_bytes=2**63),
        lambda manifest: manifest["files"][0].update(sha256="0" * 63),
    ],
)
def test_a_hostile_manifest_is_3(
    copy: Path, change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / "manifest.json"
    manifest = json.loads(path.read_bytes())
    change(manifest)
    path.write_text(json.dumps(manifest), encoding="utf-8")
    code, printed = check(copy, capsys)
    assert code == 3
    assert "damaged: manifest.json " in printed


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b"[]",
        b"\xff\xfe",
        b"[" * 200_000,
        b'{"version": NaN}',
        b'{"version": 1e999}',
        b"9" * 5_000,
        b"{",
    ],
)
def test_a_manifest_that_is_none_is_3(
    copy: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / "manifest.json").write_bytes(content)
    code, printed = check(copy, capsys)
    assert code == 3
    assert "damaged: manifest.json " in printed


def set_in_row(name: str, value: object) -> Change:
    return lambda record: record["rows"][0].update({name: value})


@pytest.mark.parametrize(
    "change",
    [
        set_in_row("token_id", -1),
        set_in_row("token_id", 2**31),
        set_in_row("token_id", 1.5),
        set_in_row("logprob", "NaN"),
        set_in_row("logprob", [1]),
        set_in_row("unknown", 0),
        lambda record: record.update(type="nonsense"),
        lambda record: record.update(step=-1),
        lambda record: record.update(request=""),
        lambda record: record.update(rows=None),
    ],
)
def test_a_malformed_record_under_a_redone_manifest_is_3(
    copy: Path, change: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    line, _ = next(bundles.emissions(copy, "on"))
    bundles.edit(copy, "runs/on/outputs.jsonl", line, change)
    code, printed = check(copy, capsys)
    assert code == 3
    assert f"damaged: runs/on/outputs.jsonl line {line}" in printed


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"1e999"])
def test_a_number_that_json_lacks_is_3(
    copy: Path, word: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / "runs/on/run.json"
    path.write_bytes(path.read_bytes().replace(b"1.5", word))
    seal(copy)
    code, printed = check(copy, capsys)
    assert code == 3
    assert "damaged: runs/on/run.json " in printed


@pytest.mark.parametrize(
    "path",
    ["plan.json", "environment.json", "verdicts.json", "runs/on/requests.json", "runs/on/run.json"],
)
def test_a_document_of_another_schema_is_3(
    copy: Path, path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bundles.edit(copy, path, 0, lambda document: document.update(version=999))
    code, printed = check(copy, capsys)
    assert code == 3
    assert f"damaged: {path} " in printed


# --- judging again ---------------------------------------------------------------------------


def test_a_token_replaced_within_its_support_is_1_every_time(
    sound: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        (line, index, record)
        for line, record in bundles.emissions(sound, "on")
        for index, support in enumerate(record["supports"])
        if len(support) > 1
    ]
    rng = random.Random(3)
    for number in range(100):
        root = shutil.copytree(sound, tmp_path / str(number))
        line, index, record = rng.choice(rows)
        old = record["rows"][index]["token_id"]
        new = rng.choice([token for token in record["supports"][index] if token != old])
        bundles.edit(root, "runs/on/outputs.jsonl", line, set_token(index, new))
        code, document = check_json(root, capsys)
        assert code == 1
        found = [
            finding
            for finding in first_findings(document)
            if finding["anomaly"] == "output.tokens"
            and finding["where"]["request"] == record["request"]
            and finding["where"]["row"] == record["first"] + index
        ]
        assert found
        shutil.rmtree(root)


def set_token(index: int, token: int) -> Change:
    return lambda record: record["rows"][index].update(token_id=token)


def cut_support(record: dict[str, Any]) -> None:
    record["supports"][0].remove(record["rows"][0]["token_id"])


def widen_support(record: dict[str, Any]) -> None:
    support = record["supports"][0]
    record["supports"][0] = sorted([*support, next(t for t in range(512) if t not in support)])


def raise_logprob(record: dict[str, Any]) -> None:
    record["rows"][0]["logprob"] += 0.25


def raise_rank(record: dict[str, Any]) -> None:
    record["rows"][0]["rank"] += 1


@pytest.mark.parametrize(
    ("change", "anomaly"),
    [
        (cut_support, "mask.membership"),
        (widen_support, "mask.support-alignment"),
        (raise_logprob, "output.logprobs"),
        (raise_rank, "output.ranks"),
        (lambda record: record.update(supports=None), "mask.absent"),
    ],
)
def test_whatever_else_of_a_row_is_changed_is_1_and_named(
    copy: Path, change: Change, anomaly: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line, record = next(bundles.emissions(copy, "on"))
    bundles.edit(copy, "runs/on/outputs.jsonl", line, change)
    code, document = check_json(copy, capsys)
    assert code == 1
    failures = {name for v in document["verdicts"] for name in v["failures"]}
    assert anomaly in failures
    assert any(f["where"]["request"] == record["request"] for f in first_findings(document))
    code, printed = check(copy, capsys)
    assert code == 1
    assert f"runs/on/outputs.jsonl:{line}" in printed
    assert f"request {record['request']}" in printed


def test_a_changed_acceptance_count_is_1(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = (copy / "runs/on/steps.jsonl").read_bytes().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if b'"accepted_tokens":1' in text)
    bundles.edit(copy, "runs/on/steps.jsonl", line, lambda step: step.update(accepted_tokens=2))
    code, printed = check(copy, capsys)
    assert code == 1
    assert "output.acceptance" in printed
    assert "runs/on/steps.jsonl" in printed


def test_the_first_counter_example_is_shown_in_full(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, _ = next(bundles.emissions(copy, "on"))
    bundles.edit(copy, "runs/on/outputs.jsonl", line, cut_support)
    _, document = check_json(copy, capsys)
    finding = first_findings(document)[0]
    _, printed = check(copy, capsys)
    assert finding["message"] in printed
    assert "look at: " in printed


def test_a_stored_verdict_that_the_evidence_does_not_bear_out_is_said(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundles.edit(
        copy,
        "verdicts.json",
        0,
        lambda stored: stored["verdicts"][1].update(verdict="fail", measured={"rows": 3}),
    )
    code, printed = check(copy, capsys)
    assert code == 0
    assert "stored verdict differs: outputs/tp1: stored fail, 3 rows; the evidence gives pass" in (
        printed
    )


def test_a_fail_that_is_stored_as_pass_is_1(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, _ = next(bundles.emissions(copy, "on"))
    bundles.edit(copy, "runs/on/outputs.jsonl", line, cut_support)
    code, document = check_json(copy, capsys)
    assert code == 1
    differing = {change["claim"] for change in document["stored_verdicts_differ"]}
    assert differing >= {"masks/tp1", "(all claims)"}


# --- interrupted -----------------------------------------------------------------------------


def test_an_interrupted_run_is_2_at_best_and_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = bundles.pair(tmp_path / "bundle", sealed=False)
    code, printed = check(root, capsys)
    assert code == 2
    assert "missing: manifest.json " in printed
    assert "unknown: " in printed


def test_a_failure_in_an_interrupted_run_is_1(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line, _ = next(bundles.emissions(copy, "on"))
    bundles.edit(copy, "runs/on/outputs.jsonl", line, cut_support)
    (copy / "manifest.json").unlink()
    assert check(copy, capsys)[0] == 1


@pytest.mark.parametrize(
    "name", ["runs/on/outputs.jsonl", "runs/off/steps.jsonl", "runs/on/ranks/rank0.jsonl"]
)
def test_a_sealed_stream_without_its_end_is_2(
    copy: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = copy / name
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    seal(copy)
    code, printed = check(copy, capsys)
    assert code == 2
    assert f"missing: {name} " in printed


@pytest.mark.parametrize("name", ["ledger.jsonl", "environment.json"])
def test_what_is_the_bundles_own_makes_it_whole(
    copy: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (copy / name).unlink()
    seal(copy)
    code, printed = check(copy, capsys)
    assert code == 2
    assert f"missing: {name} " in printed


def test_damage_wins_over_failure(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line, _ = next(bundles.emissions(copy, "on"))
    bundles.edit(copy, "runs/on/outputs.jsonl", line, cut_support)
    assert check(copy, capsys)[0] == 1
    log = copy / "engines/engine-on/logs/host.log"
    log.write_bytes(log.read_bytes().swapcase())
    assert check(copy, capsys)[0] == 3


def test_a_run_that_never_happened_leaves_its_claims_unknown(
    copy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(copy / "runs/on")
    seal(copy)
    code, document = check_json(copy, capsys)
    assert code == 2
    assert {v["verdict"] for v in document["verdicts"]} <= {"unknown", "pass"}
    assert document["overall"] == "unknown"


def test_a_plan_without_claims_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = bundles.write(tmp_path / "bundle", [], histories.plan([]))
    code, printed = check(root, capsys)
    assert code == 2
    assert "no claims" in printed


def test_words_of_a_bundle_do_not_reach_the_terminal_as_escapes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    claim = msgspec.structs.replace(
        histories.claims()[0], id="[red]x\x1b]0;title\x07", checker="none\x1b[31m[/red]"
    )
    root = bundles.write(tmp_path / "bundle", histories.pair(1), histories.plan([claim]))
    code, printed = check(root, capsys)
    assert code == 2
    assert r"[red]x\x1b]0;title\x07" in printed
    assert "\x1b" not in printed

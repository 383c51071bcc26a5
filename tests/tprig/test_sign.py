"""Signatures: whose they are, and that they are of this very evidence."""

import subprocess
from pathlib import Path

import pytest

from tests.fakes import bundles
from tprig.bundle import load
from tprig.cli import main
from tprig.sign import SignatureError, sign, signature_path, verify


def make_key(folder: Path, name: str) -> Path:
    key = folder / name
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(key)]
    subprocess.run(command, check=True)
    return key


def allow(path: Path, principal: str, key: Path) -> Path:
    kind, encoded, *_ = key.with_suffix(".pub").read_text().split()
    path.write_text(f"{principal} {kind} {encoded}\n")
    return path


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("keys")
    return make_key(folder, "mine"), make_key(folder, "other")


def test_a_signed_bundle_is_vouched_for_by_who_signed_it(
    tmp_path: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = bundles.pair(tmp_path / "bundle")
    signers = allow(tmp_path / "signers", "me@example.com", keys[0])
    assert main(["sign", str(root), "--key", str(keys[0])]) == 0
    assert signature_path(root) == tmp_path / "bundle.sig"
    assert main(["check", str(root), "--signer", str(signers)]) == 0
    assert "signed by me@example.com" in capsys.readouterr().out


def test_a_failing_bundle_is_signed_alike_and_still_fails(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    root = bundles.pair(tmp_path / "bundle")
    line, _ = next(bundles.emissions(root, "on"))
    bundles.edit(root, "runs/on/outputs.jsonl", line, lambda r: r["rows"][0].update(rank=99))
    signers = allow(tmp_path / "signers", "me@example.com", keys[0])
    assert main(["sign", str(root), "--key", str(keys[0])]) == 0
    assert main(["check", str(root), "--signer", str(signers)]) == 1


def test_evidence_that_was_made_anew_loses_its_signature(
    tmp_path: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = bundles.pair(tmp_path / "bundle")
    signers = allow(tmp_path / "signers", "me@example.com", keys[0])
    sign(load(root), keys[0], signature_path(root))
    line, _ = next(bundles.emissions(root, "on"))
    # The manifest is made anew with it, so that the digests hold: nothing but the signature tells.
    bundles.edit(root, "runs/on/outputs.jsonl", line, lambda r: r.update(step=r["step"]))
    bundles.edit(root, "plan.json", 0, lambda r: r.update(seed=7))
    assert not load(root).damaged
    assert main(["check", str(root), "--signer", str(signers)]) == 3
    assert "not vouched for" in capsys.readouterr().out


def test_a_signature_of_somebody_else_does_not_count(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    root = bundles.pair(tmp_path / "bundle")
    sign(load(root), keys[1], signature_path(root))
    signers = allow(tmp_path / "signers", "me@example.com", keys[0])
    with pytest.raises(SignatureError):
        verify(load(root), signature_path(root), signers)


def test_a_signature_for_another_purpose_does_not_count(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    root = bundles.pair(tmp_path / "bundle")
    command = ["ssh-keygen", "-q", "-Y", "sign", "-f", str(keys[0]), "-n", "git"]
    data = f"tprig bundle {load(root).digest}\n".encode()
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    signature_path(root).write_bytes(done.stdout)
    signers = allow(tmp_path / "signers", "me@example.com", keys[0])
    with pytest.raises(SignatureError):
        verify(load(root), signature_path(root), signers)


def test_an_unsigned_bundle_is_3_where_a_signer_is_demanded(
    tmp_path: Path, keys: tuple[Path, Path]
) -> None:
    root = bundles.pair(tmp_path / "bundle")
    signers = allow(tmp_path / "signers", "me@example.com", keys[0])
    assert main(["check", str(root), "--signer", str(signers)]) == 3
    assert main(["check", str(root), "--signer", str(tmp_path / "none")]) == 3
    assert main(["check", str(root)]) == 0
    assert main(["check", str(root), "--signature", str(signers)]) == 4


def test_what_is_not_sealed_or_was_changed_is_not_signed(
    tmp_path: Path, keys: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root = bundles.pair(tmp_path / "open", sealed=False)
    assert main(["sign", str(root), "--key", str(keys[0])]) == 4
    root = bundles.pair(tmp_path / "changed")
    (root / "environment.json").write_bytes(b"{}")
    assert main(["sign", str(root), "--key", str(keys[0])]) == 4
    assert "expected a sealed and undamaged bundle" in capsys.readouterr().err
    assert main(["sign", str(bundles.pair(tmp_path / "sound")), "--key", "/nowhere/key"]) == 4

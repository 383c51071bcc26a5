"""A real vLLM serves with a tree laid over it."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from fixtures.checkpoints.cache import checkpoint
from fixtures.checkpoints.mtp import MtpRecipe
from tests.tprig.tree.conftest import git
from tprig.bundle import Writer
from tprig.engine import Engine
from tprig.spec import EngineSpec
from tprig.template import Template
from tprig.tree import TreeError, overlay
from tprig.tree.installed import ask

pytestmark = pytest.mark.engine
IGNORED = ("*.so", "__pycache__", "_version.py")
CHANGE = "\n__version__ += '.of.the.tree'\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A repository of the installed vLLM's sources, at the revision it was built from."""
    try:
        installed = ask(sys.executable)
    except TreeError as error:
        pytest.skip(str(error))
    work = tmp_path / "work tree"
    shutil.copytree(installed.folder, work / "vllm", ignore=shutil.ignore_patterns(*IGNORED))
    (work / ".gitignore").write_text("\n".join(IGNORED))
    git(tmp_path, "init", "-q", str(work))
    git(work, "add", "-A")
    git(work, "commit", "-q", "-m", "base")
    for tag in installed.revisions:
        git(work, "tag", tag)
    return work


def test_an_engine_runs_what_the_tree_changed(tree: Path, tmp_path: Path) -> None:
    with (tree / "vllm/version.py").open("a") as file:
        file.write(CHANGE)
    laid = overlay(str(tree), sys.executable, tmp_path / "overlays")
    assert (laid.changed, laid.patched, laid.dirty) == (("vllm/version.py",), (), True)
    spec = EngineSpec(
        model=checkpoint(MtpRecipe()),
        tree=laid.tree,
        overlay=laid.folder,
        arguments={"dtype": "float32", "max_model_len": 64, "max_num_seqs": 2},
    )
    writer = Writer(tmp_path / "bundle")
    template = Template(spec.python, spec.overlay, spec.process_environment, tmp_path / "log")
    engine = Engine("e", spec, template=template, writer=writer)
    try:
        engine.start()
        effective = engine.effective
    finally:
        engine.stop()
        template.close()
    assert effective is not None
    assert effective.vllm_version.endswith(".of.the.tree")
    assert effective.vllm_path == str(laid.folder / "vllm")

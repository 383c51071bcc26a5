"""One warm template for all tests with a real engine: importing vLLM is what takes time."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tprig.engine.bench import Bench, spec, tiny_checkpoint
from tprig.template import Template


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.engine)


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint(tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="session")
def template(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    # Looked for, not imported: this process never holds vLLM.
    if importlib.util.find_spec("vllm") is None:
        pytest.skip(f"{sys.executable} has no vLLM")
    log = tmp_path_factory.mktemp("template") / "log"
    warm = Template(sys.executable, None, spec(model).process_environment, log)
    yield warm
    warm.close()


@pytest.fixture
def bench(model: Path, template: Template, tmp_path: Path) -> Iterator[Bench]:
    with Bench(model, template, tmp_path / "bundle") as made:
        yield made

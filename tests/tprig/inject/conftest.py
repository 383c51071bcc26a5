"""The inject folder is on the path here as it is in the vLLM under test."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.tprig.inject.foreign.client import INJECT, Foreign

# At import, since the test modules of this folder import it at collection.
sys.path.append(str(INJECT))


@pytest.fixture(scope="session")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foreign]:
    """An interpreter that has imported vLLM; it is started once."""
    with Foreign(tmp_path_factory.mktemp("foreign") / "log") as started:
        yield started

"""What ran where is no matter of an import's format, and takes seconds to find out."""

from __future__ import annotations

import pytest

from tests.fakes.bundles import ENVIRONMENT
from tprig import environment


@pytest.fixture(autouse=True)
def known_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "collect", lambda *_, **__: ENVIRONMENT)

"""What the command line prints is compared as a log has it."""

import pytest


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the width of a terminal: whoever calls pytest (xdist does) may have set one."""
    monkeypatch.delenv("COLUMNS", raising=False)

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from tprig.clock import utc_now


def test_now_is_utc_in_iso_8601_with_microseconds() -> None:
    before = datetime.now(UTC)
    text = utc_now()
    read = datetime.fromisoformat(text)
    assert read.utcoffset() == timedelta(0)
    assert before <= read <= datetime.now(UTC)
    assert text.endswith("+00:00")
    assert len(text) == len("2026-12-01T00:00:00.000000+00:00")

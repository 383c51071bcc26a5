"""A bundle as one self-contained HTML file: no script, nothing from elsewhere, opens from disk."""

from __future__ import annotations

from tprig.report.html.page import html

__all__ = ["html"]

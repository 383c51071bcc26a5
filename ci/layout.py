"""Where a build keeps its files, from the checkout's root."""

from __future__ import annotations

PLAN_FILE = ".tprig/ci-plan.json"
"""What the build is to run."""

OUTPUT = ".tprig/ci"
"""Below it, a folder for each step, and in that one for each attempt."""

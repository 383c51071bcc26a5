"""What holds for every test: hypothesis draws alike in each run, and never judges by time.

A change is judged by the same examples as its base. Benchmarks draw anew.
"""

import pytest
from hypothesis import settings

settings.register_profile("tprig", deadline=None, derandomize=True)
settings.load_profile("tprig")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under pytest-xdist: engines one after another, and one process with vLLM for all that ask it.

    An engine takes both of two cores, and what imports vLLM takes seconds to begin with.
    """
    for item in items:
        if item.get_closest_marker("engine") is not None:
            item.add_marker(pytest.mark.xdist_group("engine"))
        elif {"foreign", "real"} & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.xdist_group("foreign"))

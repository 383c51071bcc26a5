"""What holds for every test: hypothesis draws alike in each run, and never judges by time.

A change is judged by the same examples as its base. Benchmarks draw anew.
"""

from hypothesis import settings

settings.register_profile("tprig", deadline=None, derandomize=True)
settings.load_profile("tprig")

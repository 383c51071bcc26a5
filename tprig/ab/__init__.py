"""Measures two arms against each other: two engines on the same devices, pair by pair."""

from tprig.ab.arms import ArmError
from tprig.ab.options import Arms, Design, Options
from tprig.ab.session import Comparing, measure_all

__all__ = ["ArmError", "Arms", "Comparing", "Design", "Options", "measure_all"]

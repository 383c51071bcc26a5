"""What a change costs: paired measurements, their statistics, and the verdict on them."""

from tprig.checkers.ab.checker import COST

__all__ = ["COST"]

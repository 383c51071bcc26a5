"""Rank order: what every rank issued, where they parted, and the decision before it."""

from tprig.checkers.collectives.checker import RANK_ORDER, check_rank_order

__all__ = ["RANK_ORDER", "check_rank_order"]

"""Pure checkers: from the recorded evidence of a claim to its verdict, and nothing else.

`CHECKERS` holds them by the name that a claim uses; `tprig.checkers.verdict` applies them.
"""

from collections.abc import Mapping

from tprig.checkers.ab import COST
from tprig.checkers.acceptance import ACCEPTANCE
from tprig.checkers.caught import CAUGHT, CAUGHT_LOST, CAUGHT_PARITY
from tprig.checkers.checker import Checker
from tprig.checkers.collectives import RANK_ORDER
from tprig.checkers.coverage import COVERAGE
from tprig.checkers.determinism import DETERMINISM, LOCATED
from tprig.checkers.engine import ENGINE
from tprig.checkers.gates import GATE
from tprig.checkers.masks import MASKS
from tprig.checkers.oracle import ORACLE
from tprig.checkers.outputs import OUTPUTS
from tprig.checkers.parity import PARITY
from tprig.checkers.regression import REGRESSION

CHECKERS: Mapping[str, Checker] = {
    checker.name: checker
    for checker in (
        *(MASKS, OUTPUTS, ACCEPTANCE, PARITY, RANK_ORDER),
        *(ENGINE, COVERAGE, ORACLE, COST),
        *(CAUGHT, CAUGHT_LOST, CAUGHT_PARITY),
        *(DETERMINISM, LOCATED, REGRESSION, GATE),
    )
}

__all__ = ["CHECKERS", "Checker"]

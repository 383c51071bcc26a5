"""An independent reference of vLLM's sampling and rejection sampling, in NumPy and float64."""

from tprig.checkers.reference.call import (
    LogprobsMode,
    Request,
    SamplerCall,
    SamplerResult,
    TieRule,
    Verification,
)
from tprig.checkers.reference.judge import judge_call
from tprig.checkers.reference.judgement import Discrepancy, Judgement, Subject
from tprig.checkers.reference.ties import Side, Ties
from tprig.checkers.reference.wellformed import MalformedCallError, require_wellformed

__all__ = [
    "Discrepancy",
    "Judgement",
    "LogprobsMode",
    "MalformedCallError",
    "Request",
    "SamplerCall",
    "SamplerResult",
    "Side",
    "Subject",
    "TieRule",
    "Ties",
    "Verification",
    "judge_call",
    "require_wellformed",
]

"""An independent reference of vLLM's sampling and rejection sampling, in NumPy and float64."""

from tprig.checkers.reference.call import (
    LogprobsMode,
    Request,
    SamplerCall,
    SamplerResult,
    TieRule,
    Verification,
)
from tprig.checkers.reference.judgement import Discrepancy, Judgement, Subject

__all__ = [
    "Discrepancy",
    "Judgement",
    "LogprobsMode",
    "Request",
    "SamplerCall",
    "SamplerResult",
    "Subject",
    "TieRule",
    "Verification",
]

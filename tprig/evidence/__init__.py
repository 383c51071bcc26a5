"""The schema of a bundle: every record that is written, typed and versioned.

A bundle is read by people who did not make it, so each record is a frozen struct that refuses
unknown fields, and nothing in a bundle is ever executed. Two kinds of file hold records:

* a *document* is one JSON object (`plan.json`, `runs/<id>/run.json`, ...);
* a *stream* is JSON lines: one `Header`, then records of one union, then one `End`. A stream with
  no `End` was cut short, and what needs it is `unknown`.

Unknown is `None`, never 0. A float that JSON cannot hold is written as a word (`Number`).
"""

from __future__ import annotations

from tprig.evidence.base import (
    SCHEMA_VERSION,
    Count,
    End,
    Header,
    Name,
    Number,
    Record,
    TokenId,
)
from tprig.evidence.documents import (
    Arm,
    Claim,
    Effective,
    Environment,
    FileEntry,
    Gpu,
    KnownIssue,
    Manifest,
    Plan,
    Repository,
    Request,
    Requirement,
    Run,
    Sampling,
    Workload,
)
from tprig.evidence.oracle import (
    CallFlags,
    CallTensor,
    CapturedCall,
    OracleCall,
)
from tprig.evidence.streams import (
    STREAMS,
    Emission,
    EngineEvent,
    EngineRecord,
    EventName,
    Fault,
    Finite,
    LedgerEvent,
    LedgerRecord,
    OutputRecord,
    RankRecord,
    Refusal,
    Row,
    Seam,
    StageDigest,
    Step,
    StepRecord,
    Verification,
    Verified,
)
from tprig.evidence.verdicts import (
    Finding,
    Location,
    Verdict,
    VerdictName,
    Verdicts,
)

__all__ = [
    "SCHEMA_VERSION",
    "STREAMS",
    "Arm",
    "CallFlags",
    "CallTensor",
    "CapturedCall",
    "Claim",
    "Count",
    "Effective",
    "Emission",
    "End",
    "EngineEvent",
    "EngineRecord",
    "Environment",
    "EventName",
    "Fault",
    "FileEntry",
    "Finding",
    "Finite",
    "Gpu",
    "Header",
    "KnownIssue",
    "LedgerEvent",
    "LedgerRecord",
    "Location",
    "Manifest",
    "Name",
    "Number",
    "OracleCall",
    "OutputRecord",
    "Plan",
    "RankRecord",
    "Record",
    "Refusal",
    "Repository",
    "Request",
    "Requirement",
    "Row",
    "Run",
    "Sampling",
    "Seam",
    "StageDigest",
    "Step",
    "StepRecord",
    "TokenId",
    "Verdict",
    "VerdictName",
    "Verdicts",
    "Verification",
    "Verified",
    "Workload",
]

"""`tprig doctor`."""

from __future__ import annotations

from pathlib import Path

from tprig.cli.terminal import show, write_json
from tprig.doctor.diagnosis import Diagnosis, diagnose
from tprig.doctor.probes import probe
from tprig.report.diagnosis import diagnosis

BUNDLES = Path(".tprig/bundles")
"""Where runs write their bundles unless told otherwise."""


def run(vllm_python: Path, *, as_json: bool) -> int:
    """Look at this machine and return the exit code."""
    # Named as a shell would name it: a bare word is looked up, a path is taken from here.
    python = vllm_python.absolute() if len(vllm_python.parts) > 1 else vllm_python
    found = diagnose(probe(python, BUNDLES))
    if as_json:
        write_json(_document(found))
    else:
        show(diagnosis(found))
    return found.exit_code


def _document(found: Diagnosis) -> dict[str, object]:
    return {
        "exit_code": found.exit_code,
        "can_run": sorted(f"{a.platform} tp{a.tensor_parallel_size}" for a in found.abilities),
        "replay": found.replay,
        "lines": [
            {
                "name": line.name,
                "status": line.status,
                "found": line.found,
                "remedy": line.remedy,
                "blocks": sorted(f"{a.platform} tp{a.tensor_parallel_size}" for a in line.blocks),
            }
            for line in found.lines
        ],
    }

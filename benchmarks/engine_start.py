"""How long until an engine takes requests: from a warm template, cold, and as vLLM does by itself.

    python benchmarks/engine_start.py [--repeats 5] [--sizes 1 2]

Each round measures, on the same machine and one after another: a plain `vllm.LLM(...)` in a new
process with vLLM's default processes; a cold start (template included); and warm starts. The
checkpoint, engine arguments and environment are the same. Prints medians and the ratio of plain to
warm, one summary line last, and exits 1 when a warm start is less than 20 times faster.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.checkpoints.cache import checkpoint
from fixtures.checkpoints.mtp import MtpRecipe
from tprig.bundle import Writer, load
from tprig.engine import Engine
from tprig.spec import EngineSpec
from tprig.template import INJECT, Template

RATIO_LEAST = 20.0

PLAIN = """
import json, sys, time
began_s = time.monotonic()
from vllm import LLM
if __name__ == "__main__":
    LLM(**json.loads(sys.argv[1]))
    print("READY", time.monotonic() - began_s, flush=True)
"""
"""A newcomer's script; vLLM starts its engine core and workers as it pleases."""


def spec_of(tensor_parallel_size: int) -> EngineSpec:
    """The engine that is started."""
    return EngineSpec(
        model=checkpoint(MtpRecipe()),
        tensor_parallel_size=tensor_parallel_size,
        arguments={
            "dtype": "float32",
            "max_model_len": 160,
            "max_num_seqs": 12,
            "return_sampling_mask": True,
            "speculative_config": {"method": "mtp", "num_speculative_tokens": 3},
        },
    )


def plain_s(spec: EngineSpec, folder: Path) -> float:
    """Seconds from launching a new process to an engine that is ready, with vLLM's defaults.

    The inject folder is on the path for the Triton backend alone: without an engine of ours its
    plugin does nothing, and the CPU kernels that it would mend are not run at start.
    """
    script = folder / "plain.py"
    script.write_text(PLAIN)
    environment = {**os.environ, **spec.process_environment, "PYTHONPATH": str(INJECT)}
    began_s = time.monotonic()
    with subprocess.Popen(
        [spec.python, str(script), json.dumps(spec.engine_arguments)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("READY"):
                return time.monotonic() - began_s
    raise SystemExit(f"plain vLLM did not become ready: exit code {process.returncode}")


def ready_s(spec: EngineSpec, template: Template, writer: Writer, name: str) -> float:
    """Seconds from the request for an engine to its readiness."""
    engine = Engine(name, spec, template=template, writer=writer)
    try:
        engine.start()
    finally:
        engine.stop()
    bundle = load(writer.root)
    events = bundle.engines[name].events
    assert events is not None
    at_ns = {record.event: record.at_ns for record in events.records}
    return (at_ns["ready"] - at_ns["launching"]) / 1e9


def measure(tensor_parallel_size: int, repeats: int, folder: Path) -> Mapping[str, list[float]]:
    """Seconds by kind of start: `plain`, `cold`, `warm`."""
    spec = spec_of(tensor_parallel_size)
    writer = Writer(folder / f"tp{tensor_parallel_size}")
    found: dict[str, list[float]] = {"plain": [], "cold": [], "warm": []}
    for index in range(repeats):
        found["plain"].append(plain_s(spec, folder))
        began_s = time.monotonic()
        log = writer.path(f"logs/template-{index}.log")
        template = Template(spec.python, spec.overlay, spec.process_environment, log)
        try:
            ready_s(spec, template, writer, f"cold-{index}")
            found["cold"].append(time.monotonic() - began_s)
            for again in range(3):
                found["warm"].append(ready_s(spec, template, writer, f"warm-{index}-{again}"))
        finally:
            template.close()
    return found


def main() -> int:
    """Measure, print, and judge against the bound."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 2])
    arguments = parser.parse_args()
    summary, worst = [], float("inf")
    with tempfile.TemporaryDirectory(prefix="tprig-start-") as folder:
        for size in arguments.sizes:
            found = measure(size, arguments.repeats, Path(folder))
            middle = {kind: statistics.median(times) for kind, times in found.items()}
            for kind, times in found.items():
                print(
                    f"TP{size} {kind}: median {middle[kind]:.2f} s, "
                    f"least {min(times):.2f}, most {max(times):.2f}, n {len(times)}"
                )
            ratio = middle["plain"] / middle["warm"]
            worst = min(worst, ratio)
            summary.append(f"TP{size} warm {ratio:.0f}x faster than plain")
    passed = worst >= RATIO_LEAST
    verdict = "holds" if passed else "MISSED"
    print(f"{'; '.join(summary)}; bound {RATIO_LEAST:g}x {verdict}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

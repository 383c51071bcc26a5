"""How often the drafts of the reference checkpoints are accepted, on the default workload.

    python benchmarks/acceptance.py [--methods dflash dspark] [--drafts greedy probabilistic]

Builds the block-drafting checkpoints anew, in a folder of its own, and serves the default workload
with each at TP1. Prints the time of the build, then a line per method and way of sampling drafts:
by position, accepted drafts of all verifications. Exits 1 when the first position has less than 0.4
or the third less than 0.1, or when the build takes two minutes.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fixtures.cases import MAX_MODEL_LEN, SPECULATIVE_TOKENS
from fixtures.checkpoints.block import DFlashRecipe, DSparkRecipe, Qwen3Recipe
from fixtures.checkpoints.cache import Recipe, checkpoint
from fixtures.workload import PROFILES, workload
from tprig import evidence
from tprig.bundle import Writer, load
from tprig.engine import Engine, Order
from tprig.spec import EngineSpec
from tprig.template import Template

LEAST = {0: 0.4, 2: 0.1}
"""Position -> share of its drafts that must be accepted."""
BUILD_MOST_S = 120.0
PROFILE = "default"


def build(root: Path) -> tuple[dict[str, Path], float]:
    """Folders by what they hold, and the seconds that building them took."""
    began_s = time.monotonic()
    recipes: dict[str, Recipe] = {
        "target": Qwen3Recipe(),
        "dflash": DFlashRecipe(),
        "dspark": DSparkRecipe(),
    }
    folders = {name: checkpoint(recipe, root) for name, recipe in recipes.items()}
    return folders, time.monotonic() - began_s


def spec_of(folders: dict[str, Path], method: str, draft: str) -> EngineSpec:
    """The engine that is asked."""
    return EngineSpec(
        model=folders["target"],
        arguments={
            "dtype": "float32",
            "max_model_len": MAX_MODEL_LEN,
            "max_num_seqs": PROFILES[PROFILE].concurrent,
            "speculative_config": {
                "method": method,
                "model": str(folders[method]),
                "num_speculative_tokens": SPECULATIVE_TOKENS,
                "draft_sample_method": draft,
            },
        },
    )


def accepted(writer: Writer, template: Template, spec: EngineSpec, name: str) -> list[float]:
    """Per position, the share of verifications that accepted the draft there."""
    engine = Engine(name, spec, template=template, writer=writer)
    try:
        engine.start()
        asked = workload(PROFILE, 0, Qwen3Recipe().vocab_size)
        engine.run(Order(run=name, test="", workload=asked))
    finally:
        engine.stop()
    steps = load(writer.root).runs[name].steps
    assert steps is not None
    drafts, by_position = 0, [0] * SPECULATIVE_TOKENS
    for record in steps.records:
        if isinstance(record, evidence.Step) and record.drafts and record.accepted_per_position:
            drafts += record.drafts
            for position, number in enumerate(record.accepted_per_position):
                by_position[position] += number
    return [number / drafts for number in by_position]


def main() -> int:
    """Measure, print, and judge against the bounds."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--methods", nargs="+", default=["dflash", "dspark"])
    parser.add_argument("--drafts", nargs="+", default=["greedy", "probabilistic"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tprig-acceptance-") as folder:
        folders, build_s = build(Path(folder) / "checkpoints")
        print(f"target and two drafts built in {build_s:.2f} s")
        passed = build_s < BUILD_MOST_S
        writer = Writer(Path(folder) / "bundle")
        first = spec_of(folders, "dflash", "greedy")
        log = writer.path("logs/template.log")
        template = Template(first.python, first.overlay, first.process_environment, log)
        try:
            for method in arguments.methods:
                for draft in arguments.drafts:
                    spec = spec_of(folders, method, draft)
                    shares = accepted(writer, template, spec, f"{method}-{draft}")
                    passed &= all(shares[place] >= least for place, least in LEAST.items())
                    print(f"{method} {draft}: " + " / ".join(f"{s:.3f}" for s in shares))
        finally:
            template.close()
    bounds = ", ".join(f"position {place + 1} at least {least}" for place, least in LEAST.items())
    print(f"bounds ({bounds}) {'hold' if passed else 'MISSED'}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())

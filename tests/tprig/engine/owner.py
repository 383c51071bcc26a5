"""A process that owns an engine, to be killed in the middle of a run; run as a module.

Arguments: the model's folder, a folder to write to. It says what there is to kill as one line of
JSON, once the engine serves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.tprig.engine.bench import LONG, Bench, order, spec
from tprig.template import Template
from tprig.warden import Warden


def main(model: Path, folder: Path) -> None:
    """Serve until somebody ends it."""
    warden = Warden()
    environment = spec(model).process_environment
    template = Template(sys.executable, None, environment, folder / "template.log")
    engine = Bench(model, template, folder / "bundle").started(2)
    told = False

    def tell(*_: object) -> None:
        nonlocal told
        if not told:
            told = True
            footprint = engine.processes.footprint
            said = {
                "warden": warden.pid,
                "template": template.pid,
                "engine": list(engine.processes.pids()),
                "runtime": str(footprint.runtime),
                "shm_prefix": footprint.shm_prefix,
            }
            print(json.dumps(said), flush=True)

    for index in range(1000):
        engine.run(order(f"r{index}", LONG), tell)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

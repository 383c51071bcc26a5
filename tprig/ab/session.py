"""A measurement from its plan to its verdicts, in a bundle of its own."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path

import gpu_scheduler
from tprig import environment, evidence
from tprig.ab import planning
from tprig.ab.arms import ArmError, ArmSpec, arm
from tprig.ab.bench import Bench
from tprig.ab.measuring import Job, Measurement
from tprig.ab.options import Options, base_spec
from tprig.ab.shapes import SHAPES, workload
from tprig.bundle import Bundle, BundleError, Writer, load
from tprig.evidence import ArmName
from tprig.injected import injected
from tprig.judged import verdicts_of
from tprig.remains import sweep
from tprig.warden import Warden

Say = Callable[[str], None]


def measure_all(options: Options, say: Say) -> Bundle:
    """Measure every shape, seal the bundle, judge it from the disk, and seal the verdicts too.

    An engine that is lost ends its comparison: the bundle is sealed all the same, and says so.

    Args:
        options: what is asked for.
        say: told what happens, a line at a time.

    Returns:
        The bundle as it was loaded back, with its verdicts.

    Raises:
        ArmError: a setting, a shape, a fault or a number cannot be meant.
        BundleError: the bundle cannot be written.
        EngineError: an engine cannot be had, or was lost; the bundle is sealed.
        GpuSchedulerError: the devices cannot be had.
        TemplateError: an interpreter has no vLLM.
    """
    jobs = [Comparing(options, shape) for shape in _shapes(options)]
    _vocabulary(options.model)
    writer = Writer(options.bundle)
    plan = planning.plan(options, [claim for job in jobs for claim in job.claims])
    writer.document("plan.json", plan)
    writer.document("environment.json", _environment(options))
    for engine in sweep():
        say(f"cleared what engine {engine} of a dead run had left")
    with Warden():
        try:
            with writer.stream("ledger.jsonl", "ledger", writer.bundle):
                for job in jobs:
                    job.make(writer, say)
        finally:
            bundle = _sealed(writer)
    return bundle


def _sealed(writer: Writer) -> Bundle:
    writer.seal()
    bundle = load(writer.root)
    if bundle.damaged:
        raise BundleError("; ".join(str(problem) for problem in bundle.problems))
    writer.document("verdicts.json", verdicts_of(bundle))
    writer.seal()
    return load(writer.root)


class Comparing:
    """One shape: what is planned of it, and its measurement.

    Args:
        options: what is asked for.
        shape: a key of `SHAPES` of the platform.

    Attributes:
        claims: what it must decide; the first one is on the cost.

    Raises:
        ArmError: a setting or a number cannot be meant.
    """

    def __init__(self, options: Options, shape: str) -> None:
        self._options = options
        self._shape = shape
        self._arms = _arms(options, shape)
        try:
            how = planning.comparison(options, shape, self._arms["a"], self._arms["b"])
        except ValueError as error:
            raise ArmError(f"{error}; see --pairs") from None
        self.claims = planning.claims(how, options)

    def make(self, writer: Writer, say: Say) -> None:
        """Measure it; raises as `measure_all`."""
        options = self._options
        vocab_size = _vocabulary(options.model)
        requests = workload(options.platform, self._shape, options.design.seed, vocab_size)
        prefix = self.claims[0].id.partition("/")[0]
        job = Job(claim=self.claims[0], workload=requests, platform=options.platform)
        with Bench(options, writer, prefix, self._arms, say) as bench:
            Measurement(job, bench, writer, say).make()


def _shapes(options: Options) -> list[str]:
    known, faults = SHAPES[options.platform], injected().faults
    for shape in options.design.shapes:
        if shape not in known:
            raise ArmError(f"expected a shape among {', '.join(known)}, found {shape!r}")
    timed = [name for name, fault in faults.items() if fault.suite == "performance"]
    for fault in options.design.faults:
        if fault not in timed:
            raise ArmError(f"expected a slowdown among {', '.join(timed)}, found {fault!r}")
    return list(dict.fromkeys(options.design.shapes))


def _arms(options: Options, shape: str) -> Mapping[ArmName, ArmSpec]:
    base, given = base_spec(options, shape), options.arms
    a = arm(base, [*given.both, *given.a], options.overlays)
    b = a if given.b is None else arm(base, [*given.both, *given.b], options.overlays)
    if given.b is not None and a.spec == b.spec and not options.design.faults:
        raise ArmError("the arms do not differ: give arm b a setting of its own, or ask for an A/A")
    return {"a": a, "b": b}


def _vocabulary(model: Path) -> int:
    """Raises ArmError when the checkpoint does not tell."""
    try:
        config = json.loads((model / "config.json").read_bytes())
        return int(config.get("text_config", config)["vocab_size"])
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ArmError(
            f"expected a checkpoint folder whose config.json tells vocab_size, found in {model}: "
            f"{type(error).__name__}: {error}; name another one with --model"
        ) from None


def _environment(options: Options) -> evidence.Environment:
    gpus = [
        evidence.Gpu(
            uuid=gpu.uuid,
            name=gpu.name,
            pci_bus_id=gpu.pci_bus_id,
            memory_total_bytes=gpu.memory_total_bytes,
            driver=gpu.driver_version,
        )
        for gpu in gpu_scheduler.inventory().devices
    ]
    return environment.collect(options.python, gpus=gpus, variables=os.environ)

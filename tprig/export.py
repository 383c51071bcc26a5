"""Writes one captured call as a pytest file of its own, which needs vLLM and torch alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from tprig.bundle import BundleError
from tprig.bundle.oracle import CALLS, TENSORS
from tprig.checkers.oracle.bounds import CallBoundsError, arms, require_bounds
from tprig.history import CallHistory
from tprig.template import INJECT

_TEMPLATE = '''\
"""A production call of vLLM's rejection sampler, run again: the results must be the same bits.

Captured by tprig from vLLM {version} on {device_name} ({device}). The tensors lie beside this
file. Run it with pytest; it needs vLLM and torch, and neither an engine nor a checkpoint.

Call {name}: {traits}.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

import pytest
from safetensors.torch import load_file

REPETITIONS = 5
ARMS = {arms!r}
FLAGS = json.loads("""
{flags}
""")
INPUTS = {inputs!r}
TENSORS = Path(__file__).with_name({tensors!r})

# What the CPU needs where kernels run in Triton's interpreter: path -> source.
CPU_SOURCES = {sources}


def _prepare_cpu():
    """Let vLLM's CPU build run its Triton kernels in Triton's interpreter."""
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "1")
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
    folder = Path(tempfile.mkdtemp(prefix="oracle-cpu-"))
    for name, text in CPU_SOURCES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.path.insert(0, str(folder))
    import vllm.v1.worker.cpu.shm  # noqa: F401 - first: buffers do without pinned memory

    import oracle_interpreter

    oracle_interpreter.supply()


# --- the call, on samplers built from the record -----------------------------------------------

{rebuild}

# --- the test ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def device():
    if torch.cuda.is_available():
        return "cuda"
    _prepare_cpu()
    return "cpu"


@pytest.fixture(scope="module")
def captured():
    return load_file(TENSORS)


def _takes_masks():
    from vllm.v1.worker.gpu.sample.sampler import Sampler

    return "return_sampling_mask" in inspect.signature(Sampler.__init__).parameters


def _run(captured, device, replay):
    """What each repetition returned; inputs must be as they were after each."""
    same_device = FLAGS["device"] == device
    arm = Arm(captured, FLAGS, device, return_sampling_mask=replay)
    returned = []
    for _ in range(REPETITIONS):
        returned.append(arm.run(captured["rng"] if same_device else None))
        after = arm.inputs()
        for name in INPUTS:
            assert first_difference(captured[name], after[name]) is None, f"{{name}} was changed"
    return returned


def _assert_same(expected, found, what):
    for name, tensor in expected.items():
        place = first_difference(tensor, found[name])
        assert place is None, (
            f"{{what}}: {{name}} differs first at {{place}}: expected "
            f"{{tensor[tuple(place)] if place else tuple(tensor.shape)}}, found "
            f"{{found[name][tuple(place)] if place else tuple(found[name].shape)}}"
        )


@pytest.mark.parametrize("arm", ARMS)
def test_call(captured, device, arm):
    if arm == "on" and not _takes_masks():
        pytest.skip("this vLLM's sampler returns no sampling masks")
    first, *others = _run(captured, device, arm == "on")
    for number, other in enumerate(others, 2):
        _assert_same(first, other, f"repetition {{number}}")
    if FLAGS["device"] == device:
        # A mask is returned with replay alone.
        produced = {{
            n: t
            for n, t in captured.items()
            if n in first and n not in INPUTS and n != "rng"
        }}
        assert produced
        _assert_same(produced, first, "production")


@pytest.mark.skipif(len(ARMS) < 2, reason="replay refuses the greedy requests of this call")
def test_replay_changes_nothing(captured, device):
    if not _takes_masks():
        pytest.skip("this vLLM's sampler returns no sampling masks")
    off, on = (_run(captured, device, replay)[0] for replay in (False, True))
    _assert_same(off, on, "replay on")
'''


def export(call: CallHistory, bundle: Path, folder: Path) -> Path:
    """Write `test_oracle_<id>.py` and its tensors into a folder.

    Args:
        call: the captured call.
        bundle: the bundle that holds it.
        folder: is made when it is not there.

    Returns:
        The test's path.

    Raises:
        BundleError: if the call is out of bounds, or something of it cannot be written.
    """
    tensors = call.tensors()
    try:
        require_bounds(call.call, tensors)
    except CallBoundsError as error:
        raise BundleError(f"call {call.id} is refused: {error}") from error
    short = call.id[:12]
    test, data = folder / f"test_oracle_{short}.py", folder / f"oracle_{short}.safetensors"
    text = _TEMPLATE.format(
        version=call.call.flags.vllm_version,
        device=call.call.flags.device,
        device_name=call.call.flags.device_name,
        name=call.id,
        traits=f"{len(call.call.requests)} requests, {len(tensors['logits'])} rows of logits",
        arms=list(arms(tensors)),
        flags=msgspec.json.format(msgspec.json.encode(call.call.flags), indent=4).decode(),
        inputs=sorted(t.name for t in call.call.tensors if t.role == "input" and t.name != "rng"),
        tensors=data.name,
        sources=_sources(),
        rebuild=_body((INJECT / "tprig_inject/oracle/rebuild.py").read_text(encoding="utf-8")),
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle / CALLS / call.id / TENSORS, data)
        test.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BundleError(f"{folder} cannot take the test: {error}") from error
    return test


def _body(source: str) -> str:
    """A module without its docstring and its `from __future__`, which stand first in a file."""
    return source.partition("from __future__ import annotations\n")[2].strip()


def _sources() -> str:
    triton = INJECT / "tprig_triton_cpu"
    held = {f"oracle_triton_cpu/{path.name}": path.read_text() for path in triton.glob("*.py")}
    held["oracle_interpreter.py"] = (INJECT / "tprig_inject/interpreter/missing.py").read_text()
    held["oracle_triton_cpu-1.dist-info/METADATA"] = (
        "Metadata-Version: 2.1\nName: oracle-triton-cpu\nVersion: 1\n"
    )
    held["oracle_triton_cpu-1.dist-info/entry_points.txt"] = (
        "[triton.backends]\ncpu = oracle_triton_cpu\n"
    )
    lines = [f"    {name!r}: {_quoted(text)}," for name, text in sorted(held.items())]
    return "\n".join(["{", *lines, "}"])


def _quoted(text: str) -> str:
    """A literal that a person can read."""
    escaped = text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')
    return f'"""\\\n{escaped}"""'

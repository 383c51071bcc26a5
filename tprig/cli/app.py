"""The commands' arguments, and the promise that bad input never shows a traceback.

A command's module is imported when it is called, so that `tprig --help` answers at once and
`tprig check` needs nothing but what it uses.
"""

# ruff: noqa: PLC0415 (see above)

from __future__ import annotations

import contextlib
import io
import math
import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, cast

import typer

from tprig.cli import ab_options as options

USAGE = 4
INTERRUPTED = 130

# typer may carry its own copy of click, so the base of its errors is found through a public name.
_ClickError = cast(
    "type[typer.BadParameter]",
    next(base for base in typer.BadParameter.__mro__ if base.__name__ == "ClickException"),
)

app = typer.Typer(
    name="tprig",
    help="Proves, or disproves, that a vLLM change is correct on tensor-parallel speculative "
    "decoding.\n\nExit codes: 0 pass, 1 fail, 2 unknown, 3 the evidence is damaged, 4 usage or "
    "environment.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

BundleFolder = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="Folder that a run wrote.", show_default=False)
]
ReportFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write this form there.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]


def _print_version(value: bool) -> None:  # noqa: FBT001 (typer's protocol)
    if value:
        typer.echo(f"tprig {_version()}")
        raise typer.Exit


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tprig")
    except PackageNotFoundError:
        return "unknown (not installed, run from a checkout)"


@app.callback()
def _common(
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    pass


@app.command()
def check(
    bundle: BundleFolder,
    *,
    signer: Annotated[
        Path | None, typer.Option(help="Demand a signature of somebody in this ALLOWED SIGNERS.")
    ] = None,
    signature: Annotated[
        Path | None, typer.Option(help="With --signer: by default BUNDLE.sig, beside it.")
    ] = None,
    json: AsJson = False,
) -> int:
    """Verify a bundle's integrity and judge it again from its raw evidence.

    Needs no GPU, no vLLM and no torch. Exit code: 0 pass, 1 fail, 2 unknown or interrupted,
    3 damaged or not signed as demanded, 4 no bundle.
    """
    from tprig.cli import check as command

    if signature is not None and signer is None:
        raise typer.BadParameter("--signature: expected --signer FILE beside it")
    signers = None if signer is None else command.Signers(signer, signature)
    return command.run(bundle, as_json=json, signers=signers)


@app.command()
def sign(
    bundle: BundleFolder,
    *,
    key: Annotated[Path, typer.Option(help="SSH key: the private one, or an agent's public one.")],
    output: Annotated[
        Path | None, typer.Option(help="By default BUNDLE.sig, beside the bundle.")
    ] = None,
) -> int:
    """Sign a sealed bundle, whatever its verdicts, so that others know who vouches for it.

    Exit code: 0, or 4 where it cannot be signed.
    """
    from tprig.cli.opening import opened
    from tprig.sign import sign as make
    from tprig.sign import signature_path

    target = output or signature_path(bundle)
    make(opened(bundle), key, target)
    typer.echo(f"signed: {target}")
    return 0


@app.command()
def compare(
    a: Annotated[Path, typer.Argument(metavar="A", help="A bundle.", show_default=False)],
    b: Annotated[Path, typer.Argument(metavar="B", help="Another one.", show_default=False)],
    *,
    json: AsJson = False,
) -> int:
    """Find the first place where two bundles' outputs differ, and what may explain it.

    Runs are paired by id. Exit code: 0 equal, 1 different, 2 not everything could be compared,
    3 one is damaged, 4 no bundle.
    """
    from tprig.cli import compare as command

    return command.run(a, b, as_json=json)


@app.command()
def report(  # noqa: PLR0913 (one parameter for each option)
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE", help="A run's folder.", show_default=False)
    ],
    *,
    compare: Annotated[bool, typer.Option("--compare", help="Compare two bundles.")] = False,
    html: ReportFile = None,
    markdown: ReportFile = None,
    junit: ReportFile = None,
    ctrf: ReportFile = None,
    test_engine: ReportFile = None,
    annotation: ReportFile = None,
    step_summary: ReportFile = None,
) -> int:
    """Write a bundle's reports; with no file named, print Markdown for a pull request.

    They are judged again; stored verdicts are not trusted. Exit code: as of `tprig check`.
    """
    from tprig.cli import report as command

    if len(bundles) != (2 if compare else 1):
        raise typer.BadParameter("expected one BUNDLE, or two with --compare")
    named = {
        "html": html,
        "markdown": markdown,
        "junit": junit,
        "ctrf": ctrf,
        "test-engine": test_engine,
        "annotation": annotation,
        "step-summary": step_summary,
    }
    targets = {form: path for form, path in named.items() if path is not None}
    if not compare:
        return command.run(bundles[0], targets)
    if targets:
        raise typer.BadParameter("--compare prints; it takes no file")
    return command.compare(bundles[0], bundles[1])


@app.command("import")
def import_(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILES", help="One for each rank, in order.", show_default=False),
    ],
    *,
    form: Annotated[
        str, typer.Option("--format", help="nccl-log or flight-recorder.", show_default=False)
    ],
    into: Annotated[
        Path, typer.Option(help="The bundle's folder, which must not hold anything.")
    ] = Path("imported"),
) -> int:
    """Make a bundle of the collectives that another program recorded.

    `nccl-log`: what NCCL logs with NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,COLL.
    `flight-recorder`: dumps of torch's flight recorder. Exit code: 0, or 4 for a file that is none.
    """
    from tprig.cli import importing as command

    return command.run(form, files, into)


@app.command()
def replay(
    bundle: BundleFolder,
    *,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    repetitions: Annotated[int, typer.Option(min=1, help="Of each call, in each arm.")] = 5,
    call: Annotated[
        list[str] | None, typer.Option(help="Beginning of a call's id; all by default.")
    ] = None,
    vllm_python: Annotated[
        Path | None,
        typer.Option(help="Interpreter of the vLLM under test; by default the one running this."),
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add the results to the bundle, and seal it anew.")
    ] = False,
    json: AsJson = False,
) -> int:
    """Run captured calls of the rejection sampler again, with the installed vLLM, and compare.

    Needs no engine and no checkpoint. Calls that hold an index or a bound out of range are
    refused. Exit code: 0 exact, 1 different, 2 not everything could be run, 3 damaged, 4 no
    bundle, no call or no vLLM.
    """
    from tprig.cli import replay as command
    from tprig.replay import Replays

    if device not in ("cpu", "cuda"):
        raise typer.BadParameter(f"--device: expected cpu or cuda, found {device}")
    replays = Replays(
        python=str(_named(vllm_python)),
        device="cuda" if device == "cuda" else "cpu",
        repetitions=repetitions,
    )
    return command.run(
        command.Request(root=bundle, calls=call or [], replays=replays, add=add, as_json=json)
    )


def _named(python: Path | None) -> Path:
    """An interpreter as a shell would name it: a bare word is looked up, a path is from here."""
    python = python or Path(sys.executable)
    return python.absolute() if len(python.parts) > 1 else python


@app.command()
def ab(  # noqa: PLR0913 (its options)
    *,
    from_: options.From = None,
    model: options.Model = None,
    a: options.ArmA = None,
    b: options.ArmB = None,
    both: options.Both = None,
    aa: options.Identical = False,
    shapes: options.Shapes = None,
    pairs: options.Pairs = 10,
    warm_ups: options.WarmUps = 6,
    seed: options.Seed = 0,
    gates: options.Gates = None,
    margin: options.Margin = 0.02,
    equivalence: options.Equivalence = False,
    only_differs: options.OnlyDiffers = None,
    plant: options.Plant = None,
    max_foreign_load: options.MaxForeignLoad = 0.25,
    platform: options.Platform = "auto",
    tensor_parallel_size: options.TensorParallelSize = 1,
    dtype: options.Dtype = "auto",
    python: options.Python = None,
    into: options.Into = None,
    as_json: AsJson = False,
) -> int:
    """Measure two arms against each other, pair by pair, and say GO, NO-GO or INCONCLUSIVE.

    Two engines serve in turn on the same devices, in blocks ABBA drawn by seed. The plan is written
    before the first run; a pair whose arms did different work, or that was disturbed, is void.
    Exit code: 0 GO, 1 NO-GO, 2 INCONCLUSIVE, 3 damaged, 4 usage or environment.
    """
    given = {**locals(), "python": str(_named(python))}
    from tprig.cli import ab as command

    if from_ is not None:
        return command.again(from_, as_json=as_json)
    del given["from_"]
    return command.run(command.Request(**given))


@app.command(name="export-test")
def export_test(
    bundle: BundleFolder,
    call: Annotated[str, typer.Argument(metavar="CALL", help="Beginning of a captured call's id.")],
    *,
    output: Annotated[Path, typer.Option(help="Folder for the test.")] = Path(),
) -> int:
    """Write one captured call as a pytest file of its own, which needs vLLM and torch alone."""
    from tprig.cli import export_test as command

    return command.run(bundle, call, output)


@app.command()
def doctor(
    vllm_python: Annotated[
        Path | None,
        typer.Option(help="Interpreter of the vLLM under test; by default the one running this."),
    ] = None,
    *,
    json: AsJson = False,
) -> int:
    """Say what this machine can run, and what is missing and how to get it.

    Exit code: 0 when TP1 and TP2 can run on some platform, 2 when only a part can, 4 when nothing
    can.
    """
    from tprig.cli import doctor as command

    return command.run(vllm_python or Path(sys.executable), as_json=json)


gpus = typer.Typer(
    help="Say who holds which GPU and why, and who waits for it.\n\nExit code: 0, or 4 when there "
    "is none, or it cannot be told.",
    invoke_without_command=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(gpus, name="gpus")

LeaseKind = Annotated[
    Literal["cuda", "cpu"],
    typer.Option("--kind", help="What is counted: GPUs, or the host's cores in their stead."),
]


def _finite(value: float | None) -> float | None:
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter("expected a finite number")
    return value


@gpus.callback()
def _gpus(
    context: typer.Context,
    *,
    kind: LeaseKind = "cuda",
    json: AsJson = False,
    watch: Annotated[bool, typer.Option(help="Show it anew every 2 s, until Ctrl-C.")] = False,
) -> int:
    from tprig.cli import gpus as command

    if context.invoked_subcommand is not None:
        return 0
    return command.run(kind, as_json=json, watch=watch)


@gpus.command()
def release(
    quarantine: Annotated[
        list[str], typer.Option(metavar="UUID", help="A device that may be leased again.")
    ],
) -> int:
    """End a device's quarantine. Leases end with their holders, and are never taken away."""
    from tprig.cli import gpus as command

    return command.release(quarantine)


@app.command(context_settings={"allow_interspersed_args": False})
def lease(
    command: Annotated[
        list[str], typer.Argument(metavar="CMD...", help="What to run.", show_default=False)
    ],
    *,
    count: Annotated[int, typer.Option("-n", "--count", min=1, help="How many devices.")] = 1,
    kind: LeaseKind = "cuda",
    min_free_gib: Annotated[
        float | None,
        typer.Option(min=0, callback=_finite, help="Free memory that each must have."),
    ] = None,
    topology: Annotated[
        Literal["nvlink"] | None, typer.Option(help="Demand that NVLink connects them.")
    ] = None,
    wait: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="For devices that others hold.")
    ] = 3600.0,
) -> int:
    """Run a command on leased devices; it sees these, and no others.

    Exit code: the command's own (128 and the signal's number when one ended it, 127 when there is
    no such command), 125 when the lease fails.
    """
    from tprig.cli import lease as lease_command

    return lease_command.run(
        command,
        count=count,
        kind=kind,
        min_free_gib=min_free_gib,
        topology=topology,
        wait_s=wait,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tprig` and return its exit code.

    Args:
        arguments: What follows the command's name; by default this process's.
    """
    _tolerate_any_encoding()
    try:
        return _dispatch(sys.argv[1:] if arguments is None else list(arguments))
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the last resort)
        if os.environ.get("TPRIG_TRACEBACK") == "1":
            traceback.print_exc()
        else:
            _complain(error)
        return USAGE


def _dispatch(arguments: list[str]) -> int:
    command = typer.main.get_command(app)
    try:
        # Not stand-alone, because click would then exit with codes of its own: 2 is ours.
        code = command.main(args=arguments, prog_name="tprig", standalone_mode=False)
    except _ClickError as error:
        error.show()
        return USAGE
    return code if isinstance(code, int) else 0


def _complain(error: Exception) -> None:
    from gpu_scheduler import GpuSchedulerError
    from tprig.ab.arms import ArmError
    from tprig.bundle import BundleError
    from tprig.engine import EngineError
    from tprig.replay import ReplayError
    from tprig.report.text import one_line
    from tprig.template import TemplateError

    known = (ArmError, BundleError, EngineError, GpuSchedulerError, ReplayError, TemplateError)
    expected = isinstance(error, (*known, OSError))
    name = "" if expected else f"unexpected {type(error).__name__}: "
    print(one_line(f"tprig: {name}{error}"), file=sys.stderr)
    if not expected:
        print(
            "This is a fault of tprig. Please report it with what TPRIG_TRACEBACK=1 adds, to whom "
            "you have tprig from.",
            file=sys.stderr,
        )


def _tolerate_any_encoding() -> None:
    """Let what a terminal cannot show come out as an escape, not as an exception."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            with contextlib.suppress(OSError, ValueError):
                stream.reconfigure(errors="backslashreplace")

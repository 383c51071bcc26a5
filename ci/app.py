"""The commands of `python -m ci`, and the promise that bad input never shows a traceback.

What a command needs is imported when it is called: a step must not wait for what makes pipelines.
"""

# ruff: noqa: PLC0415 (see above)

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from ci.attribution import Observation
    from ci.catalog import Queue, Suite
from ci import codes, settings
from ci.errors import CiError
from ci.layout import OUTPUT, PLAN_FILE
from ci.publish import Publisher

app = typer.Typer(
    name="ci",
    help="Pipelines, ledgers, attribution and checks.\n\nExit codes: 0 pass, 1 fail, 2 unknown, 4 "
    f"usage or environment; of a step, {codes.SOFT} undecided and {codes.TIMED_OUT} timed out.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Root = Annotated[Path, typer.Option(help="The checkout whose tests are run.")]
PlanFile = Annotated[Path, typer.Option("--plan", help="The build's plan.")]
Output = Annotated[Path, typer.Option(help="Where steps keep what they record.")]
Catalogue = Annotated[
    Path | None, typer.Option("--catalog", help="TOML, in place of ci/catalog.py.")
]


@app.command("pipeline")
def pipeline_(  # noqa: PLR0913 (one parameter for each option)
    *,
    root: Root = Path(),
    catalogue: Catalogue = None,
    plan_file: PlanFile = Path(PLAN_FILE),
    suite: Annotated[list[str] | None, typer.Option(help="Only these suites.")] = None,
    changed_since: Annotated[str | None, typer.Option(help="Run what changes call for.")] = None,
    tree: Annotated[
        Path | None, typer.Option(help="Whose changes: a vLLM work tree, or this by default.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(help="GPUS=NAME or GPUS=NAME:JOBS_AT_ONCE.")
    ] = None,
    setup: Annotated[list[str] | None, typer.Option(help="A command before each step's.")] = None,
    python: Annotated[str, typer.Option(help="That runs `ci` in the steps.")] = "python3",
    flavour: Annotated[
        Literal["buildkite", "vllm"], typer.Option(help="vllm: for its .buildkite/test_areas/.")
    ] = "buildkite",
    check: Annotated[bool, typer.Option("--check", help="Explain every step instead.")] = False,
    upload: Annotated[bool, typer.Option("--upload", help="Upload it and the plan.")] = False,
) -> int:
    """Print the Buildkite pipeline, from markers, catalogue, changes and recorded durations."""
    from ci import changes, collecting, pipeline, plan, testareas

    suites = _suites(catalogue, suite or [])
    changed = None
    if changed_since is not None:
        changed = changes.changed_since((tree or root).absolute(), changed_since)
    found = {s.name: collecting.collect(root, s.tests, s.markers) for s in suites}
    # A step of vLLM's makes the plan anew, where nothing was ever measured.
    known = {} if flavour == "vllm" else _known(root)
    made = plan.make(suites, found, known, changed)
    style = pipeline.Style(_queues(queue or []), setup or (), python)
    if flavour == "vllm":
        typer.echo(testareas.emit(made, {s.name: s for s in suites}), nl=False)
        return codes.PASS
    built = pipeline.build(made, style)
    plan.write(root / plan_file, made)
    if check:
        typer.echo(pipeline.explain(made, style))
        return codes.PASS
    text = built.to_yaml(sort_keys=False)
    if upload:
        publisher = Publisher(settings.read(os.environ))
        publisher.upload(str(plan_file), root)
        publisher.pipeline(text)
    typer.echo(text, nl=False)
    return codes.PASS


def _known(root: Path) -> dict[str, float]:
    from gpu_scheduler import durations

    try:
        return durations.load(root / durations.FILE)
    except durations.DurationsError as error:
        raise CiError(
            expected="recorded durations, or none",
            found=str(error),
            rule="shards are balanced by what tests took",
            remedy="mend or delete that file",
        ) from None


def _suites(catalogue: Path | None, names: Sequence[str]) -> tuple[Suite, ...]:
    from ci import catalog

    suites = catalog.SUITES if catalogue is None else catalog.read(catalogue)
    known = [suite.name for suite in suites]
    if unknown := sorted(set(names) - set(known)):
        raise CiError(
            expected=f"suites among {', '.join(known)}",
            found=", ".join(unknown),
            rule="--suite names them as the catalogue does",
            remedy="name one of these",
        )
    return tuple(suite for suite in suites if not names or suite.name in names)


def _queues(options: Sequence[str]) -> dict[int, Queue]:
    from ci.catalog import QUEUES, Queue

    queues = dict(QUEUES)
    for option in options:
        gpus, _, name = option.partition("=")
        name, _, most = name.partition(":")
        if not gpus.isdigit() or not name or (most and not most.isdigit()):
            raise CiError(
                expected="--queue GPUS=NAME or GPUS=NAME:JOBS_AT_ONCE",
                found=option,
                rule="each GPU count has one queue",
                remedy="write such as --queue 2=gpu_2 or --queue 8=big:1",
            )
        queues[int(gpus)] = Queue(name, int(most) if most else None)
    return queues


@app.command()
def run(
    *,
    key: Annotated[str, typer.Option("--step", help="Key of the step.")],
    root: Root = Path(),
    plan_file: PlanFile = Path(PLAN_FILE),
    output: Output = Path(OUTPUT),
    local_plan: Annotated[
        bool, typer.Option("--local-plan", help="The plan is here, and not an artifact.")
    ] = False,
) -> int:
    """Run one step of the plan under a watchdog."""
    from ci import plan, step

    publisher = Publisher(settings.read(os.environ))
    if not local_plan:
        publisher.download(str(plan_file), root)
    planned = step.find(plan.read(root / plan_file), key)
    return step.run(planned, root.absolute(), (root / output).absolute(), publisher)


@app.command("summary")
def summary_(
    *,
    root: Root = Path(),
    plan_file: PlanFile = Path(PLAN_FILE),
    output: Output = Path(OUTPUT),
) -> int:
    """Merge what all steps and attempts left, write every report, and say what it comes to."""
    from ci import plan, summary

    publisher = Publisher(settings.read(os.environ))
    publisher.download(str(plan_file), root)
    publisher.download(f"{output}/**/*", root)
    found = summary.gather(plan.read(root / plan_file), root / output)
    code = summary.publish(found, root / output / "summary", publisher)
    typer.echo(summary.render(found))
    return code


@app.command("lint")
def lint_(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Such as .buildkite/test_areas.")],
    *,
    tree: Annotated[Path | None, typer.Option(help="The vLLM tree, if not above DIR.")] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Leave out artifacts.none.")] = False,
) -> int:
    """Say which steps of vLLM's pipeline cannot run, or cannot show, what they are for."""
    from ci import lint

    found = lint.lint(folder, tree)
    shown = [each for each in found.findings if not (brief and each.rule == "artifacts.none")]
    typer.echo(lint.report(replace(found, findings=tuple(shown))))
    return codes.FAIL if shown else codes.PASS


Runs = Annotated[
    list[str] | None,
    typer.Option(help="Folder of a run: a bundle or an attempt. With --run, a git revision."),
]


@app.command("attribute")
def attribute_(  # noqa: PLR0913 (one parameter for each option)
    tests: Annotated[
        list[str] | None, typer.Argument(help="With --run: the tests that failed.")
    ] = None,
    *,
    base: Runs = None,
    head: Runs = None,
    rerun: Annotated[bool, typer.Option("--run", help="Run base and head in turn.")] = False,
    tree: Annotated[Path | None, typer.Option(help="With --run: the vLLM work tree.")] = None,
    pairs: Annotated[int, typer.Option(min=1, help="With --run: runs of each side.")] = 5,
    platform: Annotated[Literal["cpu", "cuda"], typer.Option()] = "cuda",
    gpus: Annotated[int, typer.Option(min=1, help="With --run on cuda: how many.")] = 2,
    pytest_argument: Annotated[list[str] | None, typer.Option(help="With --run: more.")] = None,
    root: Root = Path(),
    output: Annotated[Path, typer.Option(help="With --run: a folder for the runs.")] = Path(
        ".tprig/attribution"
    ),
) -> int:
    """Say which failures the change caused, and which it found.

    Exit code: 1 when any failure is new, 2 when any is unknown or of the environment, else 0.
    """
    from ci import attribution, reruns

    if rerun:
        runs = _reruns(tree, base or [], head or [])
        found = reruns.rerun(
            reruns.Reruns(
                root=root.absolute(),
                tests=tests or (),
                sides={
                    "base": reruns.rig_arguments(runs[0], runs[1], platform),
                    "head": reruns.rig_arguments(runs[0], runs[2], platform),
                },
                arguments=pytest_argument or (),
                pairs=pairs,
                deadline_s=None,
                output=root / output,
            ),
            gpus if platform == "cuda" else 0,
        )
    else:
        found = _observed(base or [], head or [])
    said = attribution.attribute(found)
    typer.echo(attribution.report(said))
    return attribution.exit_code(said)


def _reruns(
    tree: Path | None, base: Sequence[str], head: Sequence[str]
) -> tuple[Path, str, str | None]:
    if tree is None or len(base) != 1 or len(head) > 1:
        raise CiError(
            expected="--run --tree PATH --base REV, and --head REV unless the tree as it lies",
            found=f"--tree {tree}, --base {list(base)}, --head {list(head)}",
            rule="re-runs compare one revision with another of one vLLM work tree",
            remedy="name each once",
        )
    return tree.absolute(), base[0], head[0] if head else None


def _observed(base: Sequence[str], head: Sequence[str]) -> list[Observation]:
    from ci.observed import observe

    if not base or not head:
        raise CiError(
            expected="at least one --base FOLDER and one --head FOLDER",
            found=f"{len(base)} and {len(head)}",
            rule="a failure is attributed by comparing runs of both",
            remedy="name folders of runs, or have them run: --run --tree PATH --base REV",
        )
    found = [each for folder in base for each in observe("base", Path(folder))]
    return [*found, *(each for folder in head for each in observe("head", Path(folder)))]


@app.command("premerge")
def premerge_(  # noqa: PLR0913 (one parameter for each option)
    *,
    tree: Annotated[Path, typer.Option(help="The vLLM work tree.")],
    base: Annotated[str, typer.Option(help="What the change is to be merged into.")],
    root: Root = Path(),
    python: Annotated[Path | None, typer.Option(help="That has the vLLM under test.")] = None,
    platform: Annotated[Literal["cpu", "cuda"], typer.Option()] = "cpu",
    gpus: Annotated[int, typer.Option(min=0, help="How many there are.")] = 0,
    upstream_test: Annotated[list[str] | None, typer.Option(help="A test of the tree.")] = None,
    engines: Annotated[bool, typer.Option(help="Run TP1 and TP2 on the tree.")] = True,
    output: Annotated[Path, typer.Option(help="A folder that is not there yet.")] = Path(
        ".tprig/premerge"
    ),
) -> int:
    """Check a vLLM work tree before its change is proposed."""
    from ci import premerge

    made = premerge.premerge(
        premerge.Request(
            tree=tree.absolute(),
            base=base,
            root=root.absolute(),
            python=str(python.absolute()) if python else sys.executable,
            platform=platform,
            gpus=gpus,
            upstream=tuple(upstream_test or ()),
            engines=engines,
        ),
        root.absolute() / output,
    )
    typer.echo(premerge.report(made))
    return codes.EXIT_CODES[premerge.worst(made)]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `python -m ci` and return its exit code."""
    command = typer.main.get_command(app)
    try:
        code = command.main(
            args=list(sys.argv[1:] if arguments is None else arguments),
            prog_name="python -m ci",
            standalone_mode=False,
        )
    except (CiError, OSError) as error:
        typer.echo(f"ci: {error}", err=True)
        return codes.USAGE
    except typer.Abort:
        return 130
    except Exception as error:
        # typer may carry its own copy of click, whose errors show themselves.
        show = getattr(error, "show", None)
        if show is None:
            raise
        show()
        return codes.USAGE
    return code if isinstance(code, int) else codes.PASS

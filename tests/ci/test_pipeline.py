"""Properties of the pipeline's parsed steps, over any catalogue."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from ci import codes, pipeline, plan
from ci.catalog import QUEUES, SUITES, Queue, Suite
from ci.changes import Changes
from ci.collected import Collected
from ci.errors import CiError
from ci.lint import swallowing
from ci.pipeline import Style

GPUS = (1, 2, 4, 8)


def suite(name: str = "a", **fields: Any) -> Suite:  # noqa: ANN401 (any field)
    known = {
        "tests": ("suites",),
        "markers": "",
        "gpus": 2,
        "timeout_min": 30,
        "sources": ("vllm/v1/",),
        "own": ("tprig/",),
    }
    return Suite(name=name, **{**known, **fields})


def collected(*gpus: int, prefix: str = "t") -> list[Collected]:
    return [Collected(f"suites/{prefix}.py::test[{i}-$x]", n, []) for i, n in enumerate(gpus)]


def steps(built: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [step for step in built["steps"] if "group" in step]
    return [step for group in groups for step in group["steps"]]


def parsed(made: plan.BuildPlan, style: Style | None = None) -> dict[str, Any]:
    text = pipeline.build(made, style or Style()).to_yaml(sort_keys=False)
    document = yaml.safe_load(text)
    assert isinstance(document, dict)
    return document


@st.composite
def catalogues(
    draw: st.DrawFn,
) -> tuple[list[Suite], dict[str, list[Collected]], dict[str, float]]:
    suites: list[Suite] = []
    tests: dict[str, list[Collected]] = {}
    durations: dict[str, float] = {}
    for index in range(draw(st.integers(1, 5))):
        made = suite(
            f"s{index}",
            gpus=draw(st.sampled_from(GPUS)),
            timeout_min=draw(st.integers(10, 120)),
            whole=draw(st.booleans()),
            shard_s=draw(st.floats(30, 3000)),
            platform=draw(st.sampled_from(("cuda", "cpu"))),
        )
        needs = draw(
            st.lists(st.sampled_from([g for g in GPUS if g <= made.gpus]), min_size=1, max_size=12)
        )
        suites.append(made)
        tests[made.name] = collected(*needs, prefix=made.name)
        for each in tests[made.name]:
            if draw(st.booleans()):
                durations[each.test] = draw(st.floats(0, 5000))
    return suites, tests, durations


@settings(max_examples=25, deadline=None)
@given(catalogues())
def test_every_step_keeps_the_rules(
    drawn: tuple[list[Suite], dict[str, list[Collected]], dict[str, float]],
) -> None:
    suites, tests, durations = drawn
    made = plan.make(suites, tests, durations)
    built = parsed(made)
    found = steps(built)
    keys = [step["key"] for step in found]
    assert keys == sorted(keys, key=[s.key for g in sorted({s.gpus for s in made.steps})
                                     for s in made.steps if s.gpus == g].index)  # fmt: skip
    assert len(set(keys)) == len(keys) == len(made.steps)
    planned = {step.key: step for step in made.steps}
    for step in found:
        mine = planned[step["key"]]
        assert step["agents"]["queue"] == QUEUES[mine.gpus].name
        assert 0 < float(step["env"]["TPRIG_CI_DEADLINE_MIN"]) < step["timeout_in_minutes"]
        assert step["soft_fail"] == [{"exit_status": codes.SOFT}]
        assert step["artifact_paths"] == [f".tprig/ci/{mine.key}/**/*"]
        assert swallowing(step["retry"]) is None
        assert all(rule["limit"] == 1 for rule in step["retry"]["automatic"])
    (summary,) = [step for step in built["steps"] if "group" not in step]
    assert {each["step"] for each in summary["depends_on"]} == set(keys)
    assert all(each["allow_failure"] is True for each in summary["depends_on"])
    assert summary["allow_dependency_failure"] is True
    assert "soft_fail" not in summary


@settings(max_examples=25, deadline=None)
@given(catalogues())
def test_every_test_is_in_one_step_of_its_own_size(
    drawn: tuple[list[Suite], dict[str, list[Collected]], dict[str, float]],
) -> None:
    suites, tests, durations = drawn
    made = plan.make(suites, tests, durations)
    for each in suites:
        mine = [step for step in made.steps if step.suite == each.name]
        ran = [test for step in mine for test in step.tests]
        assert sorted(ran) == sorted(test.test for test in tests[each.name])
        needs = {test.test: test.gpus for test in tests[each.name]}
        for step in mine:
            wanted = {needs[test] for test in step.tests}
            if each.platform == "cpu":
                assert step.gpus == 0
            elif each.whole:
                assert (step.gpus, len(mine)) == (each.gpus, 1)
            else:
                assert wanted == {step.gpus}


def test_a_shared_host_runs_as_many_jobs_as_it_is_said_to() -> None:
    made = plan.make([suite(gpus=8)], {"a": collected(8)}, {})
    (step,) = steps(parsed(made))
    assert (step["concurrency"], step["concurrency_method"]) == (1, "eager")
    assert step["concurrency_group"] == "tprig/gpu_8"
    style = Style(queues={**QUEUES, 8: Queue("mine", 3)})
    (step,) = steps(parsed(made, style))
    assert (step["concurrency"], step["concurrency_group"]) == (3, "tprig/mine")


def test_what_the_agent_would_replace_is_escaped() -> None:
    made = plan.make([suite(gpus=1)], {"a": collected(1)}, {})
    (step,) = steps(parsed(made, Style(setup=["export PATH=$HOME/bin:$PATH"])))
    assert step["commands"][0] == "export PATH=$$HOME/bin:$$PATH"


def test_a_pipeline_that_breaks_the_schema_is_refused() -> None:
    made = plan.make([suite(gpus=1)], {"a": collected(1)}, {})
    built = parsed(made)
    steps(built)[0]["timeout_in_minutes"] = "soon"
    with pytest.raises(CiError, match="steps/0"):
        pipeline.validate(built)


def test_more_jobs_than_an_upload_takes_are_refused() -> None:
    suites = [suite(f"s{i}", gpus=1) for i in range(pipeline.MAX_JOBS)]
    made = plan.make(suites, {s.name: collected(1, prefix=s.name) for s in suites}, {})
    with pytest.raises(CiError, match="at most 500 jobs"):
        pipeline.build(made, Style())


def test_a_gpu_count_without_a_queue_is_refused() -> None:
    made = plan.make([suite(gpus=3)], {"a": collected(3)}, {})
    with pytest.raises(CiError, match="--queue 3=NAME"):
        pipeline.build(made, Style())


def test_check_explains_every_step() -> None:
    changes = Changes(vllm=True, since="a", paths=("vllm/v1/x.py",))
    suites = [suite(), suite("b", sources=("csrc/",))]
    made = plan.make(suites, {"a": collected(1, 2), "b": collected(1)}, {}, changes)
    text = pipeline.explain(made, Style())
    for step in made.steps:
        assert f"{step.key}: " in text
    assert "why: changed: vllm/v1/x.py" in text
    assert "b: not run: no changed file calls for it" in text


def test_this_repositorys_catalogue_has_a_queue_and_a_name_for_each_suite() -> None:
    assert len({each.name for each in SUITES}) == len(SUITES)
    for each in SUITES:
        assert each.gpus in QUEUES
        assert each.timeout_min > pipeline.MARGIN_MIN
        assert each.own

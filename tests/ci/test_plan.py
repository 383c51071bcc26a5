"""What runs where, and what is refused before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ci import plan, shards
from ci.changes import Changes, changed_since, matches, triggers
from ci.errors import CiError
from tests.ci.test_pipeline import collected, suite
from tests.ci.toy import git


def test_an_empty_suite_is_refused() -> None:
    with pytest.raises(CiError, match="expected tests in the suite a; found none"):
        plan.make([suite()], {}, {})


def test_a_test_that_needs_more_gpus_than_its_suite_is_refused() -> None:
    with pytest.raises(CiError, match=r"at most 2 GPUs.*which needs 4"):
        plan.make([suite()], {"a": collected(1, 4)}, {})


def test_a_build_in_which_nothing_is_called_for_is_refused() -> None:
    changes = Changes(vllm=True, since="a", paths=("docs/x.md",))
    with pytest.raises(CiError, match="none of 1 is called for"):
        plan.make([suite()], {"a": collected(1)}, {}, changes)


def test_what_always_runs_needs_no_change() -> None:
    changes = Changes(vllm=True, since="a", paths=("docs/x.md",))
    suites = [suite(always=True), suite("b")]
    made = plan.make(suites, {"a": collected(1), "b": collected(1)}, {}, changes)
    assert [step.suite for step in made.steps] == ["a"]
    assert made.left_out == {"b": "no changed file calls for it"}


def test_a_plan_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = plan.make([suite()], {"a": collected(1, 2, 2)}, {})
    plan.write(tmp_path / "x" / "plan.json", made)
    assert plan.read(tmp_path / "x" / "plan.json") == made


@pytest.mark.parametrize("text", ["", "{}", '{"version": 2, "steps": [], "left_out": {}}'])
def test_what_is_no_plan_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(CiError, match="expected a plan of version 1"):
        plan.read(tmp_path / "plan.json")


@given(
    st.dictionaries(st.text(max_size=8), st.floats(0, 1e4), min_size=1, max_size=40),
    st.integers(1, 9),
)
def test_shards_hold_each_test_once_and_are_near_the_best(
    seconds: dict[str, float], count: int
) -> None:
    divided = shards.balanced(seconds, count)
    assert sorted(test for shard in divided for test in shard) == sorted(seconds)
    longest = max(sum(seconds[test] for test in shard) for shard in divided)
    # No division can be shorter than the mean or the longest test; Graham's bound is on these.
    least = max([sum(seconds.values()) / count, *seconds.values()])
    assert longest <= least * 2 + 1e-6
    assert divided == shards.balanced(dict(reversed(seconds.items())), count)
    for shard in divided:
        assert [seconds[t] for t in shard] == sorted((seconds[t] for t in shard), reverse=True)


def test_a_test_never_measured_is_taken_for_the_median() -> None:
    assert shards.estimates(["a", "b", "c", "d"], {"a": 1.0, "b": 5.0, "c": 9.0}, 60.0) == {
        "a": 1.0, "b": 5.0, "c": 9.0, "d": 5.0,
    }  # fmt: skip
    assert shards.estimates(["a"], {}, 7.0) == {"a": 7.0}


def test_prefixes_take_in_and_take_out() -> None:
    prefixes = ("vllm/distributed", "!vllm/distributed/kv_transfer/")
    assert matches("vllm/distributed/parallel_state.py", prefixes)
    assert not matches("vllm/distributed/kv_transfer/x.py", prefixes)
    assert not matches("vllm/v1/x.py", prefixes)
    assert not matches("vllm/v1/x.py", ("!csrc/",))


def test_changes_are_those_since_the_merge_base_and_those_not_committed(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "vllm").mkdir()
    for name in ("vllm/a.py", "vllm/b.py", "vllm/moved.py"):
        (tmp_path / name).write_text(name)
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "base")
    git(tmp_path, "branch", "feature")
    (tmp_path / "vllm/upstream.py").write_text("x")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "upstream")
    git(tmp_path, "checkout", "-q", "feature")
    (tmp_path / "vllm/a.py").write_text("changed")
    git(tmp_path, "mv", "vllm/moved.py", "vllm/there.py")
    git(tmp_path, "commit", "-qam", "mine")
    (tmp_path / "vllm/b.py").write_text("not committed")
    (tmp_path / "vllm/new.py").write_text("untracked")
    found = changed_since(tmp_path, "main")
    assert found.vllm
    assert found.paths == (
        "vllm/a.py", "vllm/b.py", "vllm/moved.py", "vllm/new.py", "vllm/there.py",
    )  # fmt: skip
    assert triggers(suite(sources=("vllm/n",)), found) == ["vllm/new.py"]


def test_a_revision_that_is_not_there_is_no_absence_of_changes(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "-b", "main")
    (tmp_path / "a").write_text("a")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "base")
    with pytest.raises(CiError, match="no such revision"):
        changed_since(tmp_path, "upstream/main")
    git(tmp_path, "checkout", "-q", "--orphan", "other")
    git(tmp_path, "commit", "-qm", "other")
    with pytest.raises(CiError, match="the clone may be shallow"):
        changed_since(tmp_path, "main")

"""Wrapping at seams: in which order, and that the originals come back."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from tprig_inject.hooks import Hook, Hooks, Layer, Wrap
from tprig_inject.seams import SeamMovedError

from tests.tprig.inject import toy

FAULT, RECORDER = Layer.FAULT, Layer.RECORDER

CALLS: dict[str, tuple[Any, str, Callable[[], list[object]], list[object]]] = {
    "function": (toy, "function", lambda: toy.function(1, second=2), ["function", 1, 2]),
    "method": (toy.Owner, "method", lambda: toy.Owner().method(1), ["method", 1]),
    "inner": (toy.Owner.Inner, "method", lambda: toy.Owner.Inner().method(1), ["inner", 1]),
    "classmethod": (
        toy.Owner,
        "of_class",
        lambda: toy.Heir.of_class(1),
        ["classmethod", "Heir", 1],
    ),
    "staticmethod": (toy.Owner, "static", lambda: toy.Owner().static(1), ["staticmethod", 1]),
    "inherited": (toy.Owner, "inherited", lambda: toy.Owner().inherited(1), ["inherited", 1]),
}
"""Seam -> its owner, its name there, a call of it, and what the original returns."""


@pytest.fixture
def hooks() -> Hooks:
    return Hooks(toy.TABLE)


def tag(name: str) -> Wrap:
    """A wrapper that adds a name to what is returned: the outermost comes last."""

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return [*original(*args, **kwargs), name]

        return wrapper

    return wrap


@pytest.mark.parametrize("seam", CALLS)
def test_a_wrapper_is_called_and_the_original_comes_back(hooks: Hooks, seam: str) -> None:
    owner, name, call, returned = CALLS[seam]
    original = inspect.getattr_static(owner, name)
    own = name in vars(owner)
    hook = hooks.add(seam, RECORDER, tag("wrapped"))
    assert call() == [*returned, "wrapped"]
    hooks.remove(hook)
    assert call() == returned
    assert inspect.getattr_static(owner, name) is original
    assert (name in vars(owner)) is own, "an attribute of a base class is not copied into the heir"


@pytest.mark.parametrize("seam", ["classmethod", "staticmethod"])
def test_what_is_bound_in_a_way_of_its_own_stays_so(hooks: Hooks, seam: str) -> None:
    owner, name, *_ = CALLS[seam]
    kind = type(vars(owner)[name])
    hook = hooks.add(seam, FAULT, tag("wrapped"))
    assert type(vars(owner)[name]) is kind
    hooks.remove(hook)


ADDED = (("f1", FAULT), ("f2", FAULT), ("r1", RECORDER), ("r2", RECORDER))


@pytest.mark.parametrize("order", list(permutations(ADDED)))
def test_faults_stand_next_to_the_original_and_recorders_outside(
    hooks: Hooks, order: tuple[tuple[str, Layer], ...]
) -> None:
    """Whichever came first; of one layer, the later one is outside."""
    added = [hooks.add("method", layer, tag(name)) for name, layer in order]
    faults = [name for name, layer in order if layer is FAULT]
    recorders = [name for name, layer in order if layer is RECORDER]
    assert toy.Owner().method(1) == ["method", 1, *faults, *recorders]
    for hook in added:
        hooks.remove(hook)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_wrappers_may_be_removed_in_any_order(hooks: Hooks, order: tuple[int, ...]) -> None:
    original = vars(toy.Owner)["method"]
    added = [
        hooks.add("method", layer, tag(name)) for name, layer in (ADDED[2], ADDED[0], ADDED[3])
    ]
    outermost_last = {1: "f1", 0: "r1", 2: "r2"}
    for index in order:
        hooks.remove(added[index])
        del outermost_last[index]
        assert toy.Owner().method(1) == ["method", 1, *outermost_last.values()]
    assert vars(toy.Owner)["method"] is original


def test_equal_wrappers_are_told_apart(hooks: Hooks) -> None:
    first, second = (hooks.add("method", FAULT, tag("same")) for _ in range(2))
    hooks.remove(second)
    with pytest.raises(ValueError, match="not in place"):
        hooks.remove(second)
    assert toy.Owner().method(1) == ["method", 1, "same"]
    hooks.remove(first)


def test_a_hook_that_is_not_in_place_cannot_be_removed(hooks: Hooks) -> None:
    with pytest.raises(ValueError, match="'method' is not in place"):
        hooks.remove(Hook("method", FAULT, tag("never added")))


def test_seams_do_not_touch_one_another(hooks: Hooks) -> None:
    method = hooks.add("method", FAULT, tag("on the method"))
    inner = hooks.add("inner", FAULT, tag("on the inner one"))
    assert toy.Owner().method(1) == ["method", 1, "on the method"]
    hooks.remove(method)
    assert toy.Owner.Inner().method(1) == ["inner", 1, "on the inner one"]
    hooks.remove(inner)


def refuse(original: Callable[..., Any]) -> Callable[..., Any]:
    raise RuntimeError(f"cannot wrap {original.__name__}")


@pytest.mark.parametrize("before", [[], [("r1", RECORDER)]])
def test_a_wrap_that_raises_leaves_everything_as_it_was(
    hooks: Hooks, before: list[tuple[str, Layer]]
) -> None:
    original = vars(toy.Owner)["method"]
    added = [hooks.add("method", layer, tag(name)) for name, layer in before]
    with pytest.raises(RuntimeError, match="cannot wrap method"):
        hooks.add("method", FAULT, refuse)
    assert toy.Owner().method(1) == ["method", 1, *(name for name, _ in before)]
    added.append(hooks.add("method", FAULT, tag("later")))
    for hook in added:
        hooks.remove(hook)
    assert vars(toy.Owner)["method"] is original


def test_a_moved_seam_is_refused_with_what_was_expected_and_found(hooks: Hooks) -> None:
    original = vars(toy.Owner)["method"]
    with pytest.raises(SeamMovedError) as caught:
        hooks.add("moved", FAULT, tag("never"))
    message = str(caught.value)
    assert "seam moved (tests.tprig.inject.toy:Owner.method)" in message
    assert "expected parameters ('self', 'another'), found (self, first)" in message
    assert "--tprig-seams" in message
    assert vars(toy.Owner)["method"] is original

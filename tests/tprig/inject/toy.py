"""A module that stands for vLLM where hooks and seams are tested without it."""

from __future__ import annotations

from tprig_inject.seams import Seam

NOT_CALLABLE = 3
NO_SIGNATURE = dict.fromkeys


def function(first: int, second: int = 0) -> list[object]:
    return ["function", first, second]


class Base:
    def inherited(self, first: int) -> list[object]:
        return ["inherited", first]


class Owner(Base):
    class Inner:
        def method(self, first: int) -> list[object]:
            return ["inner", first]

    def method(self, first: int) -> list[object]:
        return ["method", first]

    @classmethod
    def of_class(cls, first: int) -> list[object]:
        return ["classmethod", cls.__name__, first]

    @staticmethod
    def static(first: int) -> list[object]:
        return ["staticmethod", first]


class Heir(Owner):
    pass


def seam(attribute: str, *parameters: str) -> Seam:
    return Seam(__name__, attribute, parameters)


TABLE = {
    "function": seam("function", "first"),
    "method": seam("Owner.method", "self", "first"),
    "inner": seam("Owner.Inner.method", "self", "first"),
    "classmethod": seam("Owner.of_class", "first"),
    "staticmethod": seam("Owner.static", "first"),
    "inherited": seam("Owner.inherited", "self", "first"),
    "moved": seam("Owner.method", "self", "another"),
}

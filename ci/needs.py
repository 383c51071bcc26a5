"""How many GPUs the tests of a Python file say that they need, read from their syntax. Pure.

Only what skips or launches by a literal count is taken: `@multi_gpu_test(num_gpus=N)`,
`@pytest.mark.distributed(num_gpus=N)`, and guards of the form `device_count() < N`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

_DECORATORS = {"multi_gpu_test", "multi_gpu_marks", "multi_gpu_only", "distributed", "gpus"}
_COUNTS = {"device_count", "cuda_device_count_stateless", "num_gpus_available"}
MODULE = ""


@dataclass(frozen=True)
class Need:
    """What one test says.

    Attributes:
        test: its name in the file, `Class::test` within a class; `MODULE` for the whole file.
        gpus: how many.
        line: where it says so, 1-based.
        text: what it says.
    """

    test: str
    gpus: int
    line: int
    text: str


def needs(source: str) -> list[Need]:
    """Read a file's text; what is no Python has none."""
    try:
        module = ast.parse(source)
    except (SyntaxError, ValueError):
        return []
    return list(_of_body(module.body, ""))


def _of_body(body: list[ast.stmt], prefix: str) -> Iterator[Need]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from _marked(node.decorator_list, f"{prefix}{node.name}")
            yield from _of_body(node.body, f"{prefix}{node.name}::")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if node.name.startswith("test"):
                yield from _marked(node.decorator_list, f"{prefix}{node.name}")
                yield from _guarded(node, f"{prefix}{node.name}")
        elif _is_pytestmark(node):
            yield from _found(node, prefix.removesuffix("::") or MODULE)
        elif isinstance(node, ast.If) and not prefix and _skips(node):
            yield from _found(node.test, MODULE)


def _is_pytestmark(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets
    )


def _marked(decorators: list[ast.expr], test: str) -> Iterator[Need]:
    for decorator in decorators:
        # Marks of single parameters concern those alone.
        if _name(decorator) != "parametrize":
            yield from _found(decorator, test)


def _guarded(function: ast.FunctionDef | ast.AsyncFunctionDef, test: str) -> Iterator[Need]:
    for node in function.body:
        if isinstance(node, ast.If) and _skips(node):
            yield from _found(node.test, test)


def _skips(node: ast.If) -> bool:
    return any(
        isinstance(inner, ast.Call) and _name(inner) in ("skip", "exit")
        for statement in node.body
        for inner in ast.walk(statement)
    )


def _found(node: ast.AST, test: str) -> Iterator[Need]:
    for inner in ast.walk(node):
        count = None
        if isinstance(inner, ast.Call) and _name(inner) in _DECORATORS:
            count = _argument(inner)
        elif isinstance(inner, ast.Compare):
            count = _compared(inner)
        if count is not None:
            line = getattr(inner, "lineno", 0)
            yield Need(test, count, line, ast.unparse(inner))


def _argument(call: ast.Call) -> int | None:
    values = [k.value for k in call.keywords if k.arg in ("num_gpus", "count")]
    return _literal([*values, *call.args][0]) if values or call.args else None


def _compared(compare: ast.Compare) -> int | None:
    """`device_count() < N` needs N, and `device_count() <= N` one more."""
    left, operator = compare.left, compare.ops[0]
    if not (isinstance(left, ast.Call) and _name(left) in _COUNTS):
        return None
    count = _literal(compare.comparators[0])
    if count is None:
        return None
    more = {ast.Lt: 0, ast.LtE: 1}.get(type(operator))
    return None if more is None else count + more


def _literal(node: ast.expr) -> int | None:
    known = isinstance(node, ast.Constant) and type(node.value) is int
    return int(ast.literal_eval(node)) if known else None


def _name(node: ast.AST) -> str:
    """The last name of what is called or referred to."""
    if isinstance(node, ast.Call):
        return _name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""

"""What Triton's decisions on operands rest on, as one object that is compared by identity."""

from __future__ import annotations

from typing import Any

import numpy as np

KIND = "_tprig_kind"
"""A tensor's attribute: its kind, once it has been asked for."""

_KEY = "_tprig_key"


class Kind:
    """All tensors of one type, with handles of one type, and with arrays of one dtype and shape."""

    __slots__ = ()


class Kinds:
    """Knows every kind that has been met."""

    def __init__(self) -> None:
        from triton import language as tl
        from triton.runtime.interpreter import TensorHandle

        core = tl.core
        self._handle, self._tensor = TensorHandle, core.tensor
        self._types = (core.dtype, core.pointer_type, core.block_type)
        self._tuple, self._constexpr = core.tuple, core.constexpr
        self._met: dict[Any, Kind] = {}

    def of(self, tensor: Any) -> Kind | None:
        """The kind of a tensor; None where what it holds is no array, as with descriptors."""
        kind: Kind | None = tensor.__dict__.get(KIND)
        if kind is None and type(tensor.handle) is self._handle:
            kind = self._find(tensor)
            setattr(tensor, KIND, kind)
        return kind

    def _find(self, tensor: Any) -> Kind | None:
        data = tensor.handle.data
        types = self.type_key(tensor.type), self.type_key(tensor.handle.dtype)
        if type(data) is not np.ndarray or not data.dtype.isnative or None in types:
            return None
        return self._met.setdefault((*types, data.dtype.num, data.shape), Kind())

    def type_key(self, type_: Any) -> Any:
        """What a Triton type is, to be compared by value; None for one that is not known."""
        try:
            return type_.__dict__[_KEY]
        except KeyError:
            key = self._make_key(type_)
            setattr(type_, _KEY, key)
            return key

    def _make_key(self, type_: Any) -> Any:
        plain, pointer, block = self._types
        if type(type_) is plain:
            return (plain, type_.name)
        if type(type_) is pointer:
            element = self.type_key(type_.element_ty)
            return element and (pointer, element, type_.address_space, type_.const)
        if type(type_) is block:
            element, shape = self.type_key(type_.element_ty), tuple(type_.shape)
            return element and (block, element, shape)
        return None

    def argument(self, value: Any) -> Any:
        """What a Python argument is, told apart from all others; None where that is not known.

        1, 1.0 and True are different, and so are 0.0 and -0.0.
        """
        kind = type(value)
        if kind is int:
            return value
        if kind is float:
            return (float, value.hex())
        if kind is bool or kind is str or value is None:
            return (kind, value)
        if kind in self._types:
            return self.type_key(value)
        return self._wrapped(kind, value)

    def _wrapped(self, kind: Any, value: Any) -> Any:
        if kind is self._constexpr:
            value = (value.value,)
        elif kind not in {list, tuple, self._tuple}:
            return None
        items = tuple(map(self.argument, value))
        return None if None in items else (kind, items)

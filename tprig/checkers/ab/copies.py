"""What is copied from the device to the host for each token that is committed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from tprig.evidence import DeviceTimes, HostCopies
from tprig.history import RunHistory


@dataclass
class Copied:
    """What the steps of one rank copied, in all."""

    committed: int = 0
    size_bytes: Counter[str] = field(default_factory=Counter)
    """By tensor."""
    rows: Counter[str] = field(default_factory=Counter)
    """By tensor; those that are committed are as many as tokens."""

    @property
    def bytes_per_token(self) -> dict[str, float]:
        """By tensor, per committed token; empty where nothing was committed."""
        if not self.committed:
            return {}
        return {name: size / self.committed for name, size in self.size_bytes.items()}

    def __str__(self) -> str:
        each = self.bytes_per_token
        parts = [
            f"{name} {each[name]:.1f} ({self.rows[name]} rows)" for name in sorted(each, key=str)
        ]
        total = sum(each.values())
        return f"{total:.1f} bytes per committed token ({self.committed}): {', '.join(parts)}"


def copied(run: RunHistory) -> Copied | None:
    """What rank 0 copied over the run; None where it was not recorded.

    Every rank copies the same, and the engine takes the output of one.
    """
    records = [r for r in _records(run) if isinstance(r, HostCopies)]
    if not records:
        return None
    total = Copied()
    for record in records:
        total.committed += record.committed
        for tensor in record.tensors:
            total.size_bytes[tensor.name] += tensor.size_bytes
            total.rows[tensor.name] += tensor.rows
    return total


def copy_after_proposal_ms(run: RunHistory) -> list[float]:
    """Per step, by how much the copy ends after the proposal does; negative means earlier."""
    return [r.copy_end_ms - r.proposal_end_ms for r in _records(run) if isinstance(r, DeviceTimes)]


def inconsistent(run: RunHistory) -> Iterator[str]:
    """Sizes that do not follow from shapes and types."""
    for record in _records(run):
        if not isinstance(record, HostCopies):
            continue
        for tensor in record.tensors:
            width = _WIDTHS.get(tensor.dtype)
            count = 1
            for length in tensor.shape:
                count *= length
            if width is not None and tensor.size_bytes != count * width:
                yield (
                    f"expected {count * width} bytes of {tensor.name} {tensor.shape} "
                    f"{tensor.dtype}, found {tensor.size_bytes}"
                )


def _records(run: RunHistory) -> Iterator[object]:
    stream = run.ranks.get(0)
    return iter(stream.records if stream is not None else ())


_WIDTHS = {
    **dict.fromkeys(("uint8", "int8", "bool"), 1),
    **dict.fromkeys(("int16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "float32"), 4),
    **dict.fromkeys(("int64", "float64"), 8),
}

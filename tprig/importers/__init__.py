"""Turns what other programs recorded of their collectives into bundles that can be judged."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tprig.importers import flight_recorder, nccl_log
from tprig.importers.imported import ForeignFormatError, ImportedRank, write_bundle

FORMATS: Mapping[str, Callable[[Sequence[Path]], list[ImportedRank]]] = {
    "nccl-log": nccl_log.read,
    "flight-recorder": flight_recorder.read,
}
"""Format -> what reads its files, one for each rank."""

__all__ = ["FORMATS", "ForeignFormatError", "ImportedRank", "write_bundle"]

"""Bundles: the folders that hold a run's evidence, written, sealed and loaded again."""

from tprig.bundle.files import BundleError
from tprig.bundle.loader import Bundle, Problem, load
from tprig.bundle.manifest import seal
from tprig.bundle.writer import StreamWriter, Writer

__all__ = ["Bundle", "BundleError", "Problem", "StreamWriter", "Writer", "load", "seal"]

"""The command `tprig`."""

from tprig.cli.app import main

__all__ = ["main"]

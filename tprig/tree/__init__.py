"""Lays the Python of a vLLM work tree over an installed vLLM, whose compiled binaries stay.

The binaries decide what the Python above them may be, so three states are compared: the installed
build, the revision that it was built from (the *base*), and the tree. What the tree changed since
the base is what is under test. A tree that also changed what decides the binaries or dependencies
is refused, and so is one that changes a file which the build's packager changed too.

The work tree, its index and its refs are only read, and nothing is fetched.
"""

from tprig.tree.changes import BASE_VARIABLE
from tprig.tree.errors import TreeError
from tprig.tree.overlay import Overlay, overlay, parse

__all__ = ["BASE_VARIABLE", "Overlay", "TreeError", "overlay", "parse"]

"""tprig.tree."""

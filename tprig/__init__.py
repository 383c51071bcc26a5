"""tprig."""

"""tests.tprig.ab."""

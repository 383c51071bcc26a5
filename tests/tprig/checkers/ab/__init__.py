"""tests.tprig.checkers.ab."""

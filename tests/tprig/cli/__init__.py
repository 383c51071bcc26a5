"""Tests of tprig.cli."""

"""Tests of tprig.report."""

"""Tests of tprig.doctor."""

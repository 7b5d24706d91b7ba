"""Tests of runs.translation."""

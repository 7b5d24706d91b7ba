"""Tests of runs.recovery."""

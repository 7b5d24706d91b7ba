"""Tests of runs.log."""

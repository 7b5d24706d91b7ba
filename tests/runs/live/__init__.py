"""Tests of runs.live."""

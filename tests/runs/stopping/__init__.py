"""Tests of runs.stopping."""

"""Tests of runs.worker."""

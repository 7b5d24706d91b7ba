"""Tests of runs.reading."""

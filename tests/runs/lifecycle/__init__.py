"""Tests of runs.lifecycle."""

"""Tests of runs.memory."""

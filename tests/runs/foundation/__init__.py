"""Tests of runs.foundation."""

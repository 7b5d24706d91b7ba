"""Tests of chat.monitoring."""

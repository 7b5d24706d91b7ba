"""Tests of chat.access."""

"""Tests of chat.cluster."""

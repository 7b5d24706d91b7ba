"""Tests of chat.api."""

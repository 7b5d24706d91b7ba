"""Tests of chat.openai."""

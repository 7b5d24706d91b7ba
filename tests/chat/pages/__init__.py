"""Tests of chat.pages."""

"""Tests of chat.websocket."""

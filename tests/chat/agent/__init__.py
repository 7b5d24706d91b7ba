"""Tests of chat.agent."""

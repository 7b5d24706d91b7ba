"""The engine: runs any LangGraph graph on a session, durably, one turn at a time.

It knows nothing of HTTP, HTML or prompts.
"""

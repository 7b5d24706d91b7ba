"""The engine: runs any LangGraph graph on a session, durably, one turn at a time.

It knows nothing of HTTP, HTML or prompts.
"""

__version__ = "1.0.0"  # as in pyproject.toml: this code is never installed as a package

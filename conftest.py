"""How pytest is run here, before tests/conftest.py: with which settings, and whether tests may be skipped."""

import os

import pytest

# Not in pytest's configuration, which would read the settings before tests/conftest.py has prepared the
# environment they are read from.
os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"


def pytest_sessionfinish(session: pytest.Session) -> None:
    """With NOTHING_SKIPPED set, a skipped test fails the session: the gate has everything that tests need."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("NOTHING_SKIPPED") and reporter is not None and reporter.stats.get("skipped"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED

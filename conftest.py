"""Which settings the tests use. pytest's own configuration would read them before tests/conftest.py has
prepared the environment they are read from."""

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "project.settings"

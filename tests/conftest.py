"""Shared set-up: a data directory of its own for each test process, and people who exist in every test."""

import atexit
import os
import shutil
import tempfile

_data = tempfile.mkdtemp(prefix="turnkeeper-tests-")
atexit.register(shutil.rmtree, _data, ignore_errors=True)
os.environ["DATA_DIR"] = _data
os.environ.setdefault("SECRET_KEY", "only-for-tests-and-long-enough-to-be-taken-for-a-real-one")
os.environ["ALLOWED_HOSTS"] = "127.0.0.1,localhost,testserver"

import django  # noqa: E402

django.setup()

from django.conf import settings as project_settings  # noqa: E402

# The real hasher is slow on purpose; here it would only make each test wait.
project_settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]

import pytest  # noqa: E402

from runs import agents  # noqa: E402
from runs.worker import Supervisor  # noqa: E402


@pytest.fixture
def alice(db, django_user_model):
    """Owns what the test is about."""
    return django_user_model.objects.create_user("alice", password="alice-password")


@pytest.fixture
def bob(db, django_user_model):
    """Has an account and owns nothing of it."""
    return django_user_model.objects.create_user("bob", password="bob-password")


@pytest.fixture
def olivia(db, django_user_model):
    """Operates the service."""
    return django_user_model.objects.create_superuser("olivia", password="olivia-password")


@pytest.fixture
def serve(settings):
    """Configure agents: ``serve(build)`` or ``serve(name=build)``; a build returns an uncompiled graph."""

    def configure(build=None, **others):
        agents.forget()
        settings.AGENTS = ({"assistant": build} if build else {}) | others

    yield configure
    agents.forget()


@pytest.fixture
async def engine(transactional_db):
    """The engine of this process, running on the test's loop."""
    supervisor = await Supervisor.start()
    yield supervisor
    await supervisor.leave(5)

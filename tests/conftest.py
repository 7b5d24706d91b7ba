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

import pytest  # noqa: E402


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

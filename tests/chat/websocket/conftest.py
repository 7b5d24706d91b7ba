"""A session of alice's, and the hosts at which sockets are taken."""

from typing import Any

import pytest
from django.contrib.auth.models import User

from runs import operations


@pytest.fixture(autouse=True)
def hosts(settings: Any) -> None:
    settings.ALLOWED_HOSTS = ["testserver", "chat.example"]


@pytest.fixture
def session(transactional_db: None, alice: User) -> str:
    return str(operations.create_session(alice)["id"])

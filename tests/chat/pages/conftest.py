"""The browsers of alice and bob."""

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import AsyncClient

from tests.chat.pages.browser import browser_of


@pytest.fixture
async def as_alice(engine: Any, model: Any, alice: User) -> AsyncClient:
    return await browser_of(alice)


@pytest.fixture
async def as_bob(engine: Any, model: Any, bob: User) -> AsyncClient:
    return await browser_of(bob)

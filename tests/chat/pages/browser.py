"""Somebody's browser, what it gets, and conversations to look at."""

from django.conf import settings
from django.contrib.auth.models import User
from django.test import AsyncClient

from runs import operations
from runs.foundation.database import in_thread
from tests.fakes import Hold, Round, ScriptedModel, text
from tests.runs import waiting


async def browser_of(user: User) -> AsyncClient:
    client = AsyncClient()
    await client.aforce_login(user, settings.AUTHENTICATION_BACKENDS[-1])
    return client


async def chat_of(user: User, words: str = "Hello") -> tuple[str, str]:
    """A session with one turn that has been started; ``(session id, run id)``."""
    session = await in_thread(operations.create_session, user)
    run = await in_thread(operations.start_turn, user, session["id"], words)
    return session["id"], run["id"]


async def held_chat_of(user: User, model: ScriptedModel) -> tuple[str, str]:
    """The same, with the turn stopped in mid-answer."""
    model.script.add(Round(text("Half an answer"), Hold("middle"), text(" and the rest")))
    session_id, run_id = await chat_of(user)
    await waiting.event(run_id, "message.delta")
    return session_id, run_id


async def html_of(client: AsyncClient, path: str) -> str:
    answer = await client.get(path)
    assert answer.status_code == 200, answer.status_code
    return answer.content.decode()

"""The user's own list, live."""

import pytest

from runs import operations
from runs.foundation.database import in_thread
from runs.live import follow
from tests.chat.live import call, eventually, socket

pytestmark = pytest.mark.django_db(transaction=True)


async def test_the_list_shows_changes_of_ones_own_sessions_only(
    engine, model, alice, bob, session, monkeypatch
):
    began = []
    summaries = follow._summaries
    monkeypatch.setattr(follow, "_summaries", lambda *of: (summaries(*of), began.append(of))[0])
    async with socket(alice) as client, socket(bob) as other:
        await eventually(lambda: len(began) == 2)  # both know what there was before the change
        await in_thread(operations.rename_session, alice, session, "Plans")
        summary = await client.until("session.summary", title="Plans")
        assert sorted(summary) == ["id", "status", "title", "type", "updated_at"]
        assert summary["id"] == session
        await other.say("ping")
        assert await other.frame() == {"type": "pong"}


async def test_a_session_that_is_too_old_to_be_watched_is_told_to_be_deleted(
    engine, alice, session, monkeypatch
):
    """A page shows as many as its reader asks for."""
    monkeypatch.setattr(follow, "SUMMARIES", 2)
    newer = [(await in_thread(operations.create_session, alice))["id"] for _ in range(3)]
    began = []
    summaries = follow._summaries
    monkeypatch.setattr(follow, "_summaries", lambda *of: (summaries(*of), began.append(of))[0])
    async with socket(alice) as client:
        await eventually(lambda: began)
        for deleted in (session, newer[2]):
            await operations.delete_session(alice, deleted)
            frame = await client.until("session.deleted")
            assert frame == {"type": "session.deleted", "id": deleted}
        await in_thread(operations.rename_session, alice, newer[0], "Plans")
        assert (await client.frame())["type"] == "session.summary"  # and each was told once


async def test_the_list_has_no_frames_of_cancels(engine, model, held, alice, session):
    async with socket(alice) as client:
        await in_thread(operations.start_turn, alice, session, "hello")
        await held.reached()
        await call(alice, "POST", f"sessions/{session}/cancel/", {"wait": 20})
        seen = []
        while not seen or seen[-1].get("status") != "idle":
            seen.append(await client.frame())
    assert {frame["type"] for frame in seen} == {"session.summary"}

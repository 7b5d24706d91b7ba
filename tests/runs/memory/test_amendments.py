"""Sessions of older versions, whose checkpoints knew what their logs do not say."""

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage

from runs.foundation.database import in_thread
from runs.memory import amendments
from runs.models import Amendment, Session
from runs.reading import history
from runs.states import RunStatus
from tests.fakes import say
from tests.runs.harness import open_harness
from tests.runs.reading.conversation import Conversation, completed, started
from tests.runs.waiting import terminal


@pytest.fixture
def conversation(transactional_db, alice):
    old = Conversation(alice)
    Session.objects.filter(id=old.session.id).update(history_in_log=False)
    old.session.refresh_from_db()
    return old


@pytest.fixture
async def harness(engine, alice, serve, tmp_path):
    async with open_harness(alice, serve, tmp_path / "marks") as opened:
        yield opened


def told(conversation: Conversation, *messages: BaseMessage) -> list[tuple[str, str]]:
    """(text, audience) of everything, once these messages of the checkpoint are known."""
    amendments._write(conversation.session, messages)
    found = history.read_messages(conversation.session, audience=None)["messages"]
    return [(message["text"], message["audience"]) for message in found]


def test_what_only_the_checkpoint_has_stands_in_its_place(conversation):
    conversation.run(RunStatus.COMPLETED, started("m1"), completed("m1", "First."), repaired=True)
    conversation.run(RunStatus.COMPLETED, started("m2"), completed("m2", "Last."), repaired=True)
    asks = AIMessage("", id="a", tool_calls=[{"id": "c", "name": "look", "args": {"at": 1}}])
    assert told(
        conversation,
        SystemMessage("Be brief.", id="s"),
        *(HumanMessage("question 1", id="u1"), AIMessage("First.", id="m1"), AIMessage("Plain.", id="p")),
        *(HumanMessage("question 2", id="u2"), asks, ToolMessage("found", tool_call_id="c")),
        AIMessage("Last.", id="m2"),
    ) == [
        ("question 1", "answer"), ("First.", "answer"), ("Plain.", "answer"),
        ("question 2", "answer"), ("", "answer"), ("Last.", "answer"),
    ]  # fmt: skip
    found = history.read_messages(conversation.session)["messages"]
    assert [call["result"] for call in found[4]["tool_calls"]] == ["found"]
    assert {message["run"] for message in found[:3]} == {found[0]["run"]}
    assert [m["text"] for m in history.read_messages(conversation.session, before="p")["messages"]] == [
        "question 1", "First."
    ]  # fmt: skip


def test_what_the_graph_did_not_keep_is_work_and_what_it_rewrote_is_read_as_it_is_kept(conversation):
    conversation.run(
        RunStatus.COMPLETED,
        *(started("r"), completed("r", "left"), started("m1"), completed("m1", "The key is 1234.")),
        repaired=True,
    )
    kept = AIMessage("The key is ****.", id="m1")
    assert told(conversation, HumanMessage("question 1", id="u1"), kept) == [
        ("question 1", "answer"), ("left", "work"), ("The key is ****.", "answer")
    ]  # fmt: skip


def test_a_turn_that_the_graph_has_forgotten_is_what_its_log_says(conversation):
    inner = started("i")[1] | {"namespace": ["tools:1"]}
    conversation.run(
        RunStatus.COMPLETED,
        *(started("m1"), completed("m1", "First."), ("message.started", inner), completed("i", "Hm.")),
        repaired=True,
    )
    assert told(conversation, HumanMessage("A summary.", id="sum")) == [
        ("question 1", "answer"), ("First.", "answer"), ("Hm.", "work")
    ]  # fmt: skip


def test_the_users_words_that_the_graph_said_again_are_not_shown_twice(conversation):
    conversation.run(RunStatus.COMPLETED, started("m1"), completed("m1", "First."), repaired=True)
    again = HumanMessage("question 1", id="other")
    assert told(conversation, HumanMessage("question 1", id="u1"), again, AIMessage("First.", id="m1")) == [
        ("question 1", "answer"), ("First.", "answer")
    ]  # fmt: skip


def test_an_error_of_a_tool_that_only_the_checkpoint_has_is_shown_masked(conversation):
    conversation.run(RunStatus.COMPLETED, repaired=True)
    asks = AIMessage("", id="a", tool_calls=[{"id": "c", "name": "look", "args": {}}])
    failed = ToolMessage("no: token=abc", tool_call_id="c", id="z", status="error")
    told(conversation, HumanMessage("question 1", id="u1"), asks, failed)
    (call,) = history.read_messages(conversation.session)["messages"][1]["tool_calls"]
    assert (call["status"], call["error"]) == ("failed", "no: token=***")


def test_an_amendment_is_written_once_and_the_messages_are_found_by_their_ids(conversation):
    run = conversation.run(RunStatus.COMPLETED, started("m1"), completed("m1", "First."), repaired=True)
    run.events.update(message_key=None)
    messages = HumanMessage("question 1", id="u1"), AIMessage("First.", id="m1"), AIMessage("Plain.", id="p")
    once = told(conversation, *messages)
    assert told(conversation, *messages) == once
    assert Amendment.objects.count() == 1
    keys = run.events.exclude(message_key=None).values_list("message_key", flat=True)
    assert sorted(keys) == ["m1", "u1"]


async def test_a_session_is_amended_before_it_is_read_and_before_it_goes_on(harness):
    harness.script.add(say("First."))
    await terminal(await harness.start())
    before = await harness.history()

    async def age() -> None:
        await Session.objects.filter(id=harness.session).aupdate(history_in_log=False)

    async def is_amended() -> bool:
        return await Session.objects.filter(id=harness.session, history_in_log=True).aexists()

    await age()
    assert await harness.history() == before
    assert await is_amended()
    await age()
    harness.script.add(say("Second."))
    assert (await terminal(await harness.start())).status == "completed"
    assert await is_amended()


async def test_a_session_whose_agent_is_gone_stays_readable_and_is_amended_later(harness, settings):
    harness.script.add(say("First."))
    await terminal(await harness.start())
    session = await Session.objects.aget(id=harness.session)
    session.history_in_log = False
    await session.asave()
    before = settings.AGENTS
    settings.AGENTS = {"another": "tests.fakes:silent_graph"}
    assert [message["text"] for message in await harness.history()] == ["go", "First."]
    settings.AGENTS = before
    assert await amendments.complete(session)


async def test_a_state_that_cannot_be_read_hides_nothing(harness, monkeypatch):
    harness.script.add(say("First."))
    await terminal(await harness.start())
    await Session.objects.filter(id=harness.session).aupdate(history_in_log=False)

    async def fail(*args: Any, **options: Any) -> None:
        raise ValueError("a reducer of the agent's own")

    monkeypatch.setattr("langgraph.pregel.Pregel.aget_state", fail)
    assert [message["text"] for message in await harness.history()] == ["go", "First."]
    assert not (await in_thread(Session.objects.get, id=harness.session)).history_in_log

"""What everybody is shown of a session: what its log says, whatever the graph remembers."""

from typing import Any

import pytest
from django.db import connection
from langchain_core.messages import (
    AIMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
    messages_to_dict,
)

from runs.errors import Invalid
from runs.foundation.database import in_thread
from runs.log import transcript
from runs.memory.repair import repair
from runs.models import Run, RunEvent, Seed, ToolCall
from runs.reading import history
from runs.states import Effect, EventType, Resolution, RunStatus
from runs.wire import contract
from tests.runs.reading.conversation import (
    BEGIN,
    Conversation,
    completed,
    delta,
    started,
    tool_completed,
    tool_started,
)


@pytest.fixture
def conversation(transactional_db, alice):
    return Conversation(alice)


def asking(message: str, *calls: str, text: str = "") -> AIMessage:
    asked = [{"id": call, "name": "tool", "args": {"n": call}} for call in calls]
    return AIMessage(text, id=message, tool_calls=asked)


def answered(run_status: RunStatus = RunStatus.COMPLETED) -> tuple[Any, ...]:
    return (
        *(started("m1"), delta("m1", "Let me "), delta("m1", "look.")),
        completed("m1", "Let me look.", "c1", "c2"),
        *(tool_started("c1", "m1"), tool_completed("c1"), tool_started("c2", "m1")),
        (EventType.TOOL_FAILED, {"tool_call": "c2", "error": "it broke"}),
        *(started("m2"), delta("m2", "Here it is."), completed("m2", "Here it is.")),
    )


def shown(messages: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(message["role"], message["text"], message["status"]) for message in messages]


async def test_a_turn_is_read_from_its_log(conversation):
    run = await in_thread(conversation.run, RunStatus.COMPLETED, *answered())
    from_log = await conversation.read()
    assert [message["id"] for message in from_log] == ["u1", "m1", "m2"]
    assert from_log[1] == {
        "audience": "answer",
        "id": "m1",
        "run": str(run.id),
        "role": "assistant",
        "text": "Let me look.",
        "status": "complete",
        "tool_calls": [
            {
                "id": "c1",
                "name": "tool",
                "args": {"n": "c1"},
                "status": "completed",
                "result": "real c1",
                "error": None,
                "effect": "done",
                "duration_ms": 1000,
            },
            {
                "id": "c2",
                "name": "tool",
                "args": {"n": "c2"},
                "status": "failed",
                "result": None,
                "error": "it broke",
                "effect": "done",
                "duration_ms": 1000,
            },
        ],
        "usage": {"input_tokens": 3, "output_tokens": 5},
        "at": "2026-01-01T00:01:05Z",
    }


async def test_a_cut_turn_reads_as_the_model_gets_it_once_it_is_repaired(conversation):
    run = await in_thread(
        conversation.run,
        RunStatus.CANCELLED,
        completed("m1", "Let me look.", "c1", "c2"),
        *(tool_started("c1", "m1"), tool_completed("c1"), tool_started("c2", "m1")),
        (EventType.TOOL_CANCELLED, {"tool_call": "c2", "effect": "unknown"}),
        *(started("m2"), delta("m2", " Here it "), completed("m2", " Here it ", status="interrupted")),
    )
    await conversation.store(
        HumanMessage("question 1", id="u1"), asking("m1", "c1", "c2", text="Let me look.")
    )
    before = await conversation.read()
    events = await in_thread(lambda: list(run.events.order_by("seq")))
    await repair(conversation.graph, conversation.session.id, [transcript.fold(run, events)])
    assert shown(before)[-1] == ("assistant", " Here it ", "interrupted")
    assert [call["status"] for call in before[1]["tool_calls"]] == ["completed", "cancelled"]
    # And these are the words the model gets.
    told = [message.text for message in await conversation.stored() if message.type != "tool"]
    assert told == [message["text"] for message in before]


async def test_an_active_turn_is_read_from_its_log_as_far_as_its_last_seq(conversation):
    done = await in_thread(conversation.run, RunStatus.COMPLETED, *answered(), repaired=True)
    active = await in_thread(
        conversation.run, RunStatus.RUNNING, started("m3"), delta("m3", "one "), delta("m3", "two")
    )
    found = await conversation.found()
    assert shown(found["messages"])[-2:] == [
        ("user", "question 2", "complete"),
        ("assistant", "one two", "streaming"),
    ]
    assert [message["run"] for message in found["messages"]] == [str(done.id)] * 3 + [str(active.id)] * 2
    assert (found["run_id"], found["last_seq"]) == (active.id, 4)


async def test_a_queued_turn_comes_last_and_the_one_before_it_is_followed(conversation):
    first = await in_thread(conversation.run, RunStatus.RUNNING, queue_place=5)
    await in_thread(conversation.run, RunStatus.QUEUED, queue_place=6)
    await in_thread(conversation.run, RunStatus.QUEUED, queue_place=-1)
    found = await conversation.found()
    assert [message["id"] for message in found["messages"]] == ["u1", "u3", "u2"]
    assert found["run_id"] == first.id


async def test_an_accepted_message_is_in_the_history_while_nobody_has_taken_it(conversation):
    queued = await in_thread(conversation.run, RunStatus.QUEUED)
    found = await conversation.found()
    assert shown(found["messages"]) == [("user", "question 1", "complete")]
    assert (found["run_id"], found["last_seq"]) == (queued.id, 1)


async def test_a_resumed_run_and_its_successor_are_one_turn_without_the_superseded_words(
    conversation,
):
    lost = await in_thread(
        conversation.run,
        RunStatus.INTERRUPTED,
        *(completed("m1", "Let me look.", "c1"), tool_started("c1", "m1"), tool_completed("c1")),
        *(started("m2"), delta("m2", "Here it")),
        resolution=Resolution.RESUMED,
    )
    resumed = await in_thread(
        conversation.run,
        RunStatus.RUNNING,
        *(started("m3"), delta("m3", "Here it is.")),
        resumes=lost,
        message_id="u1",
        input="question 1",
    )
    messages = await conversation.read()
    assert [(message["id"], message["run"]) for message in messages] == [
        ("u1", str(lost.id)),
        ("m1", str(lost.id)),
        ("m3", str(resumed.id)),
    ]
    await in_thread(conversation.log, resumed, completed("m3", "Here it is."))
    await in_thread(Run.objects.filter(id=resumed.id).update, status="completed", finished_at=BEGIN)
    after = await conversation.read()
    assert [(message["id"], message["run"]) for message in after] == [
        (message["id"], message["run"]) for message in messages
    ]
    assert after[:2] == messages[:2]


async def test_a_retried_turn_is_not_shown(conversation):
    await in_thread(conversation.run, RunStatus.COMPLETED, *answered(), resolution=Resolution.RETRIED)
    await in_thread(conversation.run, RunStatus.QUEUED)
    assert shown(await conversation.read()) == [("user", "question 2", "complete")]


async def test_what_a_client_brought_along_comes_first_and_is_of_no_run(conversation):
    old = [
        SystemMessage("be kind", id="s"),
        HumanMessage("old", id="o"),
        asking("x", "y"),
        ToolMessage("yes", tool_call_id="y", id="z"),
        AIMessage("hm", id="h"),
    ]
    await in_thread(Seed.objects.create, session=conversation.session, messages=messages_to_dict(old))
    await in_thread(conversation.run, RunStatus.COMPLETED, *answered())
    messages = await conversation.read()
    assert shown(messages)[:4] == [
        ("system", "be kind", "complete"),
        ("user", "old", "complete"),
        ("assistant", "", "complete"),
        ("assistant", "hm", "complete"),
    ]
    assert [(message["run"], message["at"]) for message in messages[:4]] == [(None, None)] * 4
    assert messages[2]["tool_calls"][0]["result"] == "yes"
    assert await conversation.read(before="h", limit=2) == messages[1:3]
    assert await conversation.read(before="s") == []


async def test_work_is_shown_to_who_asks_for_it_and_is_no_answer(conversation):
    await in_thread(
        conversation.run,
        RunStatus.COMPLETED,
        *(
            started("w"),
            completed("w", "to the left"),
            (EventType.MESSAGE_CHANGED, {"message": "w", "audience": "work"}),
        ),
        *(
            started("m"),
            completed("m", "The secret."),
            (EventType.MESSAGE_CHANGED, {"message": "m", "text": "The ***."}),
        ),
    )
    assert [message["text"] for message in await conversation.read()] == ["question 1", "The ***."]
    everything = await conversation.read(audience=None)
    assert [(message["text"], message["audience"]) for message in everything] == [
        ("question 1", "answer"),
        ("to the left", "work"),
        ("The ***.", "answer"),
    ]
    assert await conversation.read(before="w") == everything[:1]


@pytest.mark.parametrize("has_keys", [True, False])
async def test_a_page_costs_the_same_in_a_session_of_any_length(conversation, has_keys):
    """The rows that a page reads, and no more: older turns are not even looked at."""

    def fill() -> None:
        for number in range(60):
            message = f"m{number}"
            conversation.run(RunStatus.COMPLETED, started(message), completed(message, f"answer {number}"))
        if not has_keys:
            RunEvent.objects.update(message_key=None)  # as in older logs

    await in_thread(fill)
    read: list[str] = []

    def count(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        read.append(sql)
        return execute(sql, params, many, context)

    def page(before: str) -> list[contract.Message]:
        with connection.execute_wrapper(count):
            return history.read_messages(conversation.session, limit=4, before=before)["messages"]

    late = await in_thread(page, "m50")
    first = len(read)
    assert [message["text"] for message in late][:2] == ["answer 48", "question 50"]
    early = await in_thread(page, "m10")
    assert len(early) == 4
    assert len(read) == 2 * first


async def test_an_older_log_whose_message_has_no_end_is_read_with_its_pieces(conversation):
    await in_thread(
        conversation.run, RunStatus.INTERRUPTED, started("m"), delta("m", "one "), delta("m", "two")
    )
    assert shown(await conversation.read())[-1] == ("assistant", "one two", "interrupted")


async def test_a_long_session_is_read_in_batches_that_leave_nothing_out(conversation, monkeypatch):
    def fill() -> None:
        for number in range(7):
            conversation.run(RunStatus.COMPLETED, started(f"m{number}"), completed(f"m{number}", "Yes."))
        conversation.run(RunStatus.QUEUED)

    await in_thread(fill)
    whole = await conversation.read()
    assert len(whole) == 15
    monkeypatch.setattr(history, "_LARGE_BATCH", 2)
    monkeypatch.setattr(history, "_BATCH", 3)
    assert await conversation.read() == whole
    assert await conversation.read(limit=11) == whole[-11:]


async def test_pages_go_back_from_a_message(conversation):
    await in_thread(conversation.run, RunStatus.COMPLETED, *answered())
    await in_thread(conversation.run, RunStatus.RUNNING, started("m3"), delta("m3", "one"))
    whole = await conversation.read()
    assert await conversation.read(limit=2) == whole[-2:]
    assert await conversation.read(limit=2, before=whole[-2]["id"]) == whole[-4:-2]
    assert await conversation.read(limit=9, before=whole[1]["id"]) == whole[:1]
    assert await conversation.read(before=whole[0]["id"]) == []
    assert await conversation.read(limit=0) == []
    with pytest.raises(Invalid):
        await conversation.read(before="nobody")


@pytest.mark.parametrize("number", ["1", "long" * 100], ids=["short", "long"])
async def test_a_straggler_that_ended_is_shown_with_its_effect(conversation, number):
    message, call = f"m{number}", f"c{number}"
    run = await in_thread(
        conversation.run,
        RunStatus.CANCELLED,
        *(completed(message, "", call), tool_started(call, message)),
        (EventType.TOOL_CANCELLED, {"tool_call": call, "effect": "unknown"}),
    )
    assert (await conversation.read())[1]["tool_calls"][0]["effect"] == "unknown"
    await in_thread(ToolCall.objects.filter(run=run).update, effect=Effect.DONE)
    shown = (await conversation.read())[1]["tool_calls"][0]
    assert shown["id"] == call
    assert (shown["status"], shown["effect"], shown["result"]) == ("cancelled", "done", None)


async def test_a_session_without_anything_has_an_empty_history(conversation):
    found = await conversation.found()
    assert found == {"messages": [], "run_id": None, "last_seq": 0}

"""What everybody is shown of a session: the same words before and after the end, and after a repair."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from runs.errors import Invalid
from runs.foundation.database import in_thread
from runs.log import transcript
from runs.log.tool_calls import project
from runs.memory.repair import repair
from runs.models import Run, RunEvent, Session, ToolCall
from runs.reading import history
from runs.states import TERMINAL, TERMINAL_EVENT, Effect, EventType, Resolution, RunStatus

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


class Conversation:
    """A session with its log and its checkpoint, filled by hand."""

    def __init__(self, owner: Any) -> None:
        self.session = Session.objects.create(owner=owner, agent="assistant")
        builder = StateGraph(MessagesState)
        builder.add_node("agent", lambda state: {})
        builder.add_edge(START, "agent")
        self.graph: Any = builder.compile(checkpointer=InMemorySaver())
        self.config: Any = {"configurable": {"thread_id": str(self.session.id)}}
        self.turns = 0

    def run(self, status: RunStatus, *events: tuple[str, dict[str, Any]], **fields: Any) -> Run:
        """A run with the events of its log, its terminal one included."""
        self.turns += 1
        at = BEGIN + timedelta(minutes=self.turns)
        run = Run.objects.create(
            session=self.session,
            **{
                "queue_place": self.turns,
                "position": None if status == RunStatus.QUEUED else self.turns,
                "status": status,
                "input": f"question {self.turns}",
                "message_id": f"u{self.turns}",
                "created_at": at,
                "finished_at": at if status in TERMINAL else None,
                "error_code": "internal" if status == RunStatus.FAILED else None,
            }
            | fields,
        )
        log = [(EventType.RUN_QUEUED, {"message": run.message_id, "input": run.input}), *events]
        if status in TERMINAL:
            log.append((TERMINAL_EVENT[status], {}))
        self.log(run, *log)
        return run

    def log(self, run: Run, *events: tuple[str, dict[str, Any]]) -> None:
        for kind, data in events:
            run.last_seq += 1
            at = BEGIN + timedelta(minutes=run.queue_place, seconds=run.last_seq)
            RunEvent.objects.create(run=run, seq=run.last_seq, type=kind, data=data, at=at)
            project(run.id, [(kind, data)], at)
        run.save()

    async def store(self, *messages: BaseMessage) -> None:
        await self.graph.aupdate_state(self.config, {"messages": list(messages)}, as_node="agent")

    async def stored(self) -> list[BaseMessage]:
        return (await self.graph.aget_state(self.config)).values.get("messages", [])

    async def read(self, **page: Any) -> list[dict[str, Any]]:
        return (await history.read_messages(self.graph, self.session, **page))["messages"]


@pytest.fixture
def conversation(transactional_db, alice):
    return Conversation(alice)


def started(message: str) -> tuple[str, dict[str, Any]]:
    return EventType.MESSAGE_STARTED, {
        "message": message,
        "role": "assistant",
        "node": "agent",
        "namespace": [],
    }


def delta(message: str, text: str) -> tuple[str, dict[str, Any]]:
    return EventType.MESSAGE_DELTA, {"message": message, "text": text}


def completed(message: str, text: str, *calls: str, status: str = "complete") -> tuple[str, dict[str, Any]]:
    asked = [{"id": call, "name": "tool", "args": {"n": call}} for call in calls]
    usage = {"input_tokens": 3, "output_tokens": 5} if status == "complete" else None
    data = {"message": message, "role": "assistant", "text": text, "tool_calls": asked, "usage": usage}
    return EventType.MESSAGE_COMPLETED, data | {"status": status}


def tool_started(call: str, message: str) -> tuple[str, dict[str, Any]]:
    data = {"tool_call": call, "message": message, "name": "tool", "args": {"n": call}}
    return EventType.TOOL_STARTED, data | {"node": "agent", "namespace": []}


def tool_completed(call: str) -> tuple[str, dict[str, Any]]:
    return EventType.TOOL_COMPLETED, {"tool_call": call, "result": f"real {call}", "duration_ms": 1000}


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


def stored_answer() -> tuple[BaseMessage, ...]:
    return (
        HumanMessage("question 1", id="u1"),
        asking("m1", "c1", "c2", text="Let me look."),
        ToolMessage("real c1", tool_call_id="c1", id="t1"),
        ToolMessage("it broke", tool_call_id="c2", id="t2", status="error"),
        AIMessage("Here it is.", id="m2"),
    )


def shown(messages: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [(message["role"], message["text"], message["status"]) for message in messages]


async def test_a_turn_reads_the_same_from_its_log_and_from_the_checkpoint(conversation):
    run = await in_thread(conversation.run, RunStatus.COMPLETED, *answered(), repaired=False)
    await conversation.store(*stored_answer())
    from_log = await conversation.read()
    await in_thread(Run.objects.filter(id=run.id).update, repaired=True)
    assert await conversation.read() == from_log
    assert [message["id"] for message in from_log] == ["u1", "m1", "m2"]
    assert from_log[1] == {
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


async def test_a_cut_turn_reads_the_same_before_and_after_its_repair(conversation):
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
    await in_thread(Run.objects.filter(id=run.id).update, repaired=True)
    assert await conversation.read() == before
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
    await conversation.store(*stored_answer(), HumanMessage("question 2", id="u2"))
    found = await history.read_messages(conversation.graph, conversation.session)
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
    found = await history.read_messages(conversation.graph, conversation.session)
    assert [message["id"] for message in found["messages"]] == ["u1", "u3", "u2"]
    assert found["run_id"] == first.id


async def test_an_accepted_message_is_in_the_history_while_nobody_has_taken_it(conversation):
    queued = await in_thread(conversation.run, RunStatus.QUEUED)
    found = await history.read_messages(conversation.graph, conversation.session)
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
    await in_thread(
        Run.objects.filter(id=resumed.id).update, status="completed", finished_at=BEGIN, repaired=True
    )
    await conversation.store(
        HumanMessage("question 1", id="u1"),
        asking("m1", "c1", text="Let me look."),
        ToolMessage("real c1", tool_call_id="c1", id="t1"),
        AIMessage("Here it is.", id="m3"),
    )
    after = await conversation.read()
    assert [(message["id"], message["run"]) for message in after] == [
        (message["id"], message["run"]) for message in messages
    ]
    assert after[:2] == messages[:2]


async def test_a_retried_turn_is_not_shown_even_before_it_has_left_the_checkpoint(conversation):
    await in_thread(
        conversation.run, RunStatus.COMPLETED, *answered(), resolution=Resolution.RETRIED, repaired=False
    )
    await in_thread(conversation.run, RunStatus.QUEUED)
    await conversation.store(*stored_answer())
    assert shown(await conversation.read()) == [("user", "question 2", "complete")]


async def test_a_retry_during_the_read_is_noticed(conversation):
    run = await in_thread(conversation.run, RunStatus.COMPLETED, *answered(), repaired=True)
    await conversation.store(*stored_answer())
    reads = []
    original = conversation.graph.aget_state

    async def retried_meanwhile(config: Any) -> Any:
        state = await original(config)
        if not reads:
            await in_thread(
                Run.objects.filter(id=run.id).update, resolution=Resolution.RETRIED, repaired=False
            )
        reads.append(state)
        return state

    conversation.graph.aget_state = retried_meanwhile
    assert await conversation.read() == []
    assert len(reads) == 2


async def test_a_run_that_ends_during_the_read_is_shown_once(conversation):
    run = await in_thread(conversation.run, RunStatus.RUNNING, *answered())
    await conversation.store(*stored_answer()[:1])
    original = conversation.graph.aget_state

    async def ended_meanwhile(config: Any) -> Any:
        await conversation.store(*stored_answer()[1:])
        await in_thread(
            Run.objects.filter(id=run.id).update, status="completed", finished_at=BEGIN, repaired=True
        )
        return await original(config)

    conversation.graph.aget_state = ended_meanwhile
    assert [message["id"] for message in await conversation.read()] == ["u1", "m1", "m2"]


async def test_messages_from_elsewhere_have_no_run_and_system_messages_are_shown(conversation):
    await in_thread(conversation.run, RunStatus.COMPLETED, *answered(), repaired=True)
    old = [
        SystemMessage("be kind", id="s"),
        HumanMessage("old", id="o"),
        asking("x", "y"),
        AIMessage("hm", id="h"),
    ]
    await conversation.store(*old, *stored_answer())
    messages = await conversation.read()
    assert shown(messages)[:4] == [
        ("system", "be kind", "complete"),
        ("user", "old", "complete"),
        ("assistant", "", "complete"),
        ("assistant", "hm", "complete"),
    ]
    assert [(message["run"], message["at"]) for message in messages[:4]] == [(None, None)] * 4
    assert messages[2]["tool_calls"][0]["effect"] == "none"


async def test_an_error_of_a_tool_that_only_the_checkpoint_has_is_shown_masked(conversation):
    await in_thread(conversation.run, RunStatus.COMPLETED, *answered(), repaired=True)
    failed = ToolMessage("no: token=abc", tool_call_id="y", id="z", status="error")
    await conversation.store(HumanMessage("old", id="o"), asking("x", "y"), failed, *stored_answer())
    (call,) = (await conversation.read())[1]["tool_calls"]
    assert (call["status"], call["error"]) == ("failed", "no: token=***")


async def test_pages_go_back_from_a_message(conversation):
    await in_thread(conversation.run, RunStatus.COMPLETED, *answered(), repaired=True)
    await in_thread(conversation.run, RunStatus.RUNNING, started("m3"), delta("m3", "one"))
    await conversation.store(*stored_answer())
    whole = await conversation.read()
    assert await conversation.read(limit=2) == whole[-2:]
    assert await conversation.read(limit=2, before=whole[-2]["id"]) == whole[-4:-2]
    assert await conversation.read(limit=9, before=whole[1]["id"]) == whole[:1]
    assert await conversation.read(before=whole[0]["id"]) == []
    assert await conversation.read(limit=0) == []
    with pytest.raises(Invalid):
        await conversation.read(before="nobody")


@pytest.mark.parametrize("number", ["1", "long" * 100], ids=["short", "long"])
async def test_a_straggler_that_ended_is_shown_with_its_effect_before_and_after_the_repair(
    conversation, number
):
    message, call = f"m{number}", f"c{number}"
    run = await in_thread(
        conversation.run,
        RunStatus.CANCELLED,
        *(completed(message, "", call), tool_started(call, message)),
        (EventType.TOOL_CANCELLED, {"tool_call": call, "effect": "unknown"}),
    )
    await in_thread(ToolCall.objects.filter(run=run).update, effect=Effect.DONE)
    assert (await conversation.read())[1]["tool_calls"][0]["effect"] == "done"
    events = await in_thread(lambda: list(run.events.order_by("seq")))
    await repair(conversation.graph, conversation.session.id, [transcript.fold(run, events)])
    await in_thread(Run.objects.filter(id=run.id).update, repaired=True)
    shown = (await conversation.read())[1]["tool_calls"][0]
    assert shown["id"] == call
    assert (shown["status"], shown["effect"], shown["result"]) == ("cancelled", "done", None)


async def test_a_session_without_anything_has_an_empty_history(conversation):
    found = await history.read_messages(conversation.graph, conversation.session)
    assert found == {"messages": [], "run_id": None, "last_seq": 0}

"""A session whose log and checkpoint are filled by hand."""

from datetime import UTC, datetime, timedelta
from typing import Any

from langchain_core.messages import BaseMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from runs.foundation.database import in_thread
from runs.log.events import message_key
from runs.log.tool_calls import project
from runs.models import Run, RunEvent, Session
from runs.reading import history
from runs.states import TERMINAL, TERMINAL_EVENT, EventType, RunStatus

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
            key = message_key(kind, data)
            RunEvent.objects.create(run=run, seq=run.last_seq, type=kind, data=data, at=at, message_key=key)
            project(run.id, [(kind, data)], at)
        run.save()

    async def store(self, *messages: BaseMessage) -> None:
        await self.graph.aupdate_state(self.config, {"messages": list(messages)}, as_node="agent")

    async def stored(self) -> list[BaseMessage]:
        return (await self.graph.aget_state(self.config)).values.get("messages", [])

    async def read(self, **page: Any) -> list[dict[str, Any]]:
        return (await self.found(**page))["messages"]

    async def found(self, **page: Any) -> dict[str, Any]:
        return await in_thread(lambda: history.read_messages(self.session, **page))


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


def changed(message: str, **what: str) -> tuple[str, dict[str, Any]]:
    return EventType.MESSAGE_CHANGED, {"message": message, **what}


def tool_started(call: str, message: str) -> tuple[str, dict[str, Any]]:
    data = {"tool_call": call, "message": message, "name": "tool", "args": {"n": call}}
    return EventType.TOOL_STARTED, data | {"node": "agent", "namespace": []}


def tool_completed(call: str) -> tuple[str, dict[str, Any]]:
    return EventType.TOOL_COMPLETED, {"tool_call": call, "result": f"real {call}", "duration_ms": 1000}

"""A harness for whole turns: alice, a strict provider over HTTP, test tools, and questions afterwards."""

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import BaseMessage
from langchain_core.tools import BaseTool
from langchain_openai import ChatOpenAI
from langgraph.graph import StateGraph
from pydantic import SecretStr

from runs import agents, operations, this_process
from runs.foundation.database import in_thread
from runs.models import Run
from runs.wire import contract
from tests.fakes import Marks, Round, ScriptedProvider, fan_out_graph, say, tools, unsendable
from tests.runs.waiting import terminal

if TYPE_CHECKING:
    from django.contrib.auth.models import User

    from runs.worker.engine import Engine


class Harness:
    """One provider, one agent, one session of alice's."""

    def __init__(self, owner: "User", provider: ScriptedProvider, marks: Marks) -> None:
        self.owner = owner
        self.provider = provider
        self.script = provider.script
        self.ledger = provider.ledger
        self.marks = marks
        self.session = ""

    @property
    def engine(self) -> "Engine":
        """The engine of this process."""
        assert this_process.engine is not None
        return this_process.engine

    async def open_session(self) -> str:
        """A new session; later turns go there."""
        self.session = (await in_thread(operations.create_session, self.owner))["id"]
        return self.session

    async def start(self, text: str = "go", **options: Any) -> str:
        """Start a turn; its id."""
        return (await in_thread(operations.start_turn, self.owner, self.session, text, **options))["id"]

    async def cancel(self, run_id: UUID | str, **options: Any) -> contract.Cancellation:
        """Request a cancel of the run; the Cancellation as accepted."""
        return await in_thread(operations.cancel_run, self.owner, run_id, **options)

    async def cancelled(self, run_id: UUID | str, seconds: float = 10) -> Run:
        """Cancel the run and wait for it to end; the run."""
        await self.cancel(run_id)
        return await terminal(run_id, seconds)

    async def history(self) -> list[contract.Message]:
        """The messages of the session as clients see them."""
        return (await operations.history(self.owner, self.session))["messages"]

    async def state(self) -> list[BaseMessage]:
        """The checkpoint's messages."""
        session = await in_thread(operations._session, self.owner, self.session)
        graph = agents.load(session.agent).graph_on(self.engine.checkpoints.reader())
        found = await graph.aget_state({"configurable": {"thread_id": self.session}})
        assert found.next == ()
        return found.values.get("messages", [])

    async def assert_sendable(self) -> None:
        """HIST ok: each call has one result in its place, and a user message may follow."""
        fault = unsendable(await self.state(), user_after_tool=True)
        assert fault is None, fault

    async def assert_next_completes(self, text: str = "and now?") -> None:
        """NEXT ok: a new message is accepted by the strict provider and completes."""
        self.script.clear()
        self.script.add(say("Fine again."))
        ended = await terminal(await self.start(text))
        assert ended.status == "completed", ended.error_message
        assert (await self.history())[-1]["text"] == "Fine again."

    async def run(self, run_id: UUID | str) -> Run:
        """The run as it is stored."""
        return await in_thread(Run.objects.get, id=run_id)


@asynccontextmanager
async def open_harness(
    owner: "User",
    serve: Callable[..., None],
    marks_path: Path,
    *,
    build: Callable[[BaseChatModel, list[BaseTool]], StateGraph[Any]] = fan_out_graph,
    rounds: Iterable[Round] = (),
    release: threading.Event | None = None,
    policy: Mapping[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[Harness]:
    """A harness whose agent has the shape ``build``, all the test tools, and this policy."""
    async with ScriptedProvider(strict=True, **options) as provider:
        provider.script.add(*rounds)
        model = ChatOpenAI(
            model="scripted",
            base_url=provider.base_url,
            api_key=SecretStr("x"),
            stream_usage=True,
            max_retries=0,
            streaming=True,
        )
        marks = Marks(marks_path)
        serve(agents.agent(**(policy or {}))(lambda: build(model, tools(marks, release))))
        harness = Harness(owner, provider, marks)
        await harness.open_session()
        yield harness

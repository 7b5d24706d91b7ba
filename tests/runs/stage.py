"""A stage for whole turns: alice, a strict provider over HTTP, test tools, and questions afterwards."""

from contextlib import asynccontextmanager

from langchain_openai import ChatOpenAI

from runs import agents, operations, process
from runs.foundation.database import in_thread
from runs.models import Run
from tests.fakes import Marks, ScriptedProvider, fan_out_graph, say, tools, unsendable
from tests.runs.waiting import terminal


class Stage:
    """One provider, one agent, one session of alice's."""

    def __init__(self, owner, provider, marks):
        self.owner = owner
        self.provider = provider
        self.script = provider.script
        self.ledger = provider.ledger
        self.marks = marks
        self.session = ""

    @property
    def engine(self):
        """The engine of this process."""
        return process.current

    async def open_session(self):
        """A new session; later turns go there."""
        self.session = (await in_thread(operations.create_session, self.owner))["id"]
        return self.session

    async def start(self, text="go", **options):
        """Start a turn; its id."""
        return (await in_thread(operations.start_turn, self.owner, self.session, text, **options))["id"]

    async def cancel(self, run_id, **options):
        """Request a cancel of the run; the Cancellation as accepted."""
        return await in_thread(operations.cancel_run, self.owner, run_id, **options)

    async def cancelled(self, run_id, seconds=10):
        """Cancel the run and wait for it to end; the run."""
        await self.cancel(run_id)
        return await terminal(run_id, seconds)

    async def history(self):
        """The messages of the session as clients see them."""
        return (await operations.history(self.owner, self.session))["messages"]

    async def state(self):
        """The checkpoint's messages."""
        session = await in_thread(operations._session, self.owner, self.session)
        graph = agents.load(session.agent).graph_on(process.current.checkpoints.reader())
        found = await graph.aget_state({"configurable": {"thread_id": self.session}})
        assert found.next == ()
        return found.values.get("messages", [])

    async def assert_sendable(self):
        """HIST ok: each call has one result in its place, and a user message may follow."""
        fault = unsendable(await self.state(), user_after_tool=True)
        assert fault is None, fault

    async def assert_next_completes(self, text="and now?"):
        """NEXT ok: a new message is accepted by the strict provider and completes."""
        self.script.clear()
        self.script.add(say("Fine again."))
        ended = await terminal(await self.start(text))
        assert ended.status == "completed", ended.error_message
        assert (await self.history())[-1]["text"] == "Fine again."

    async def run(self, run_id):
        """The run as it is stored."""
        return await in_thread(Run.objects.get, id=run_id)


@asynccontextmanager
async def open_stage(
    owner, serve, marks_path, *, build=fan_out_graph, rounds=(), release=None, policy=None, **options
):
    """A stage whose agent has the shape ``build``, all the test tools, and this policy."""
    async with ScriptedProvider(strict=True, **options) as provider:
        provider.script.add(*rounds)
        model = ChatOpenAI(
            model="scripted",
            base_url=provider.base_url,
            api_key="x",
            stream_usage=True,
            max_retries=0,
            streaming=True,
        )
        marks = Marks(marks_path)
        serve(agents.agent(**(policy or {}))(lambda: build(model, tools(marks, release))))
        stage = Stage(owner, provider, marks)
        await stage.open_session()
        yield stage

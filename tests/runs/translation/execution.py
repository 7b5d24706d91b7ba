"""One execution of a real LangGraph graph, translated chunk by chunk."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph

from runs import tool_nodes
from runs.states import RunStatus
from runs.translation.translator import Translator
from tests.runs.translation.recorder import Recorder, assert_log_is_sound

RUN = "11111111-1111-1111-1111-111111111111"
MODES: Any = ["messages", "updates", "values", "tools", "custom"]  # its type lacks "tools"


class Execution:
    """One execution of a graph, as the engine does it."""

    def __init__(self, graph: StateGraph, saver: InMemorySaver | None = None, **options: Any) -> None:
        self.saver = saver or InMemorySaver()
        self.graph = graph.compile(checkpointer=self.saver)
        self.recorder = Recorder()
        self.known = options.get("known")
        self.translator = Translator(self.recorder, run_id=RUN, **options)
        nodes = tool_nodes.find(self.graph)
        self.translator.tools.gated_tools = {name for node in nodes for name in node.tools_by_name}

    def stream(self, turn: Any = "hello", **config: Any) -> Any:
        """The graph's chunks, ``(namespace, mode, payload)``."""
        if isinstance(turn, str):
            turn = {"messages": [HumanMessage(turn)]}
        whole = {"configurable": {"thread_id": "1"}, "callbacks": [self.translator.handler], **config}
        return self.graph.astream(
            turn, cast(RunnableConfig, whole), stream_mode=MODES, subgraphs=True, durability="sync"
        )

    async def run(
        self, turn: Any = "hello", status: RunStatus | None = RunStatus.COMPLETED, **config: Any
    ) -> Recorder:
        async for chunk in self.stream(turn, **config):
            self.translator.feed(*chunk)
        if self.translator.questions:
            status = RunStatus.WAITING
        if status is not None:
            self.close(status)
        return self.recorder

    async def messages(self) -> list[AnyMessage]:
        """The messages in the graph's state."""
        state = await self.graph.aget_state({"configurable": {"thread_id": "1"}})
        return state.values["messages"]

    def close(self, status: RunStatus) -> None:
        self.translator.close(status)
        if status != RunStatus.WAITING:
            assert_log_is_sound(self.recorder, self.known)

    async def cancel_when(self, reached: Callable[[Recorder], bool]) -> Recorder:
        """Start it, cancel its task once ``reached``, and close it as cancelled."""
        task = asyncio.create_task(self.run(status=None))
        async with asyncio.timeout(10):
            while not reached(self.recorder):
                assert not task.done(), task.result()
                await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.close(RunStatus.CANCELLED)
        return self.recorder

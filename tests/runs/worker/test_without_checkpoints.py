"""Subgraphs that keep no checkpoints of their own."""

import pytest
from langgraph.graph import END, START, MessagesState, StateGraph

from tests.fakes import call, plain_graph, say, sync_graph
from tests.runs.harness import open_harness
from tests.runs.waiting import terminal


@pytest.mark.parametrize("inner", [plain_graph, sync_graph], ids=["on the loop", "in threads"])
async def test_a_subgraph_without_checkpoints_completes(engine, alice, serve, tmp_path, inner):
    def build(model, tools):
        nested = inner(model, tools).compile(checkpointer=False)
        graph = StateGraph(MessagesState)
        if inner is plain_graph:
            graph.add_node("inner", nested)
        else:

            def run_inner(state):
                return nested.invoke(state)

            graph.add_node("inner", run_inner)
        graph.add_edge(START, "inner")
        graph.add_edge("inner", END)
        return graph

    rounds = [call("mark", x="1"), say("Done.")]
    async with open_harness(alice, serve, tmp_path / "marks", build=build, rounds=rounds) as harness:
        ended = await terminal(await harness.start())
        assert ended.status == "completed", ended.error_message
        assert [message["text"] for message in await harness.history()][-1] == "Done."
        await harness.assert_sendable()

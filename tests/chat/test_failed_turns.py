"""A turn that failed, over each protocol: a code and a sentence, and no word of what was raised."""

import json

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Run
from tests.chat.live import call, socket, stream
from tests.chat.openai.completions import complete, data_of
from tests.chat.openai.completions import stream as stream_completion
from tests.chat.pages.browser import browser_of, html_of
from tests.fakes import HOSTILE, SECRETS, WORD, Marks, ScriptedModel, plain_graph, tools
from tests.fakes import call as tool_call

pytestmark = pytest.mark.django_db(transaction=True)


def node(error, path):
    def fail(state):
        raise error

    graph = StateGraph(MessagesState)
    graph.add_node("fail", fail)
    graph.add_edge(START, "fail")
    return graph


def unhandled_tool(error, path):
    boom = next(one for one in tools(Marks(path / "marks")) if one.name == "boom")

    def fail(message: str = "") -> str:
        raise error

    boom.func = fail
    return plain_graph(ScriptedModel(*[tool_call("boom")] * 9), [boom], handle_tool_errors=False)


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("build", [node, unhandled_tool])
async def test_no_word_of_what_was_raised_is_told(engine, alice, serve, tmp_path, make, build):
    error = make()
    serve(lambda: build(error, tmp_path))
    code = "internal" if build is node else "tool"
    told = []

    # REST, its event stream and its pages of events
    session = (await in_thread(operations.create_session, alice))["id"]
    answer, events = await stream(alice, f"sessions/{session}/runs/", {"input": "hello"})
    assert answer.status == 200
    told.append(await events.events())
    assert told[-1][-1]["data"]["error"]["code"] == code
    run = told[-1][0]["run"]
    told.append((await call(alice, "GET", f"runs/{run}/")).json())
    assert told[-1]["error"] == told[0][-1]["data"]["error"]
    assert "error_details" not in told[-1]
    told.append((await call(alice, "GET", f"runs/{run}/events/", accept="application/json")).json())
    told.append((await call(alice, "GET", f"sessions/{session}/history/?render=html")).json())

    # the socket
    async with socket(alice, session) as client:
        told.append(await client.ask("turn.start", input="again"))
        while told[-1].get("event", {}).get("type") != "run.failed":
            told.append(await client.until("run.event"))
        assert told[-1]["event"]["data"]["error"]["code"] == code

    # OpenAI's
    answer = await complete(alice)
    told.append(answer.json())
    assert told[-1]["error"]["code"] == code
    _, http = await stream_completion(alice)
    told.append(await data_of(http))
    assert told[-1][-1]["error"]["code"] == code

    # the page
    told.append(await html_of(await browser_of(alice), f"/chat/{session}/"))
    assert told[0][-1]["data"]["error"]["message"].split("'")[0] in told[-1]

    said = json.dumps(told, ensure_ascii=False)
    said.encode()
    for word in (WORD, *SECRETS, "xxxxx", "\\u0000", type(error).__name__):
        assert word not in said
    details = await in_thread(lambda: list(Run.objects.values_list("error_details", flat=True)))
    assert len(details) == 4
    assert all(type(error).__name__ in text for text in details)

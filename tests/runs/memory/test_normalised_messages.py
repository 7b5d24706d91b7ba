"""Messages come into a form that each provider takes, whatever its own format is."""

import operator
from typing import Any

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    ToolMessage,
)

from runs.memory.normalise import engine_mark, normalise
from runs.states import ToolStatus
from tests.fakes import unsendable
from tests.runs.memory.histories import asking, called, result, said, turn, user, words


def mended(message: AIMessage, *behind: BaseMessage) -> list[BaseMessage]:
    given = [user(), message, *behind]
    messages = normalise(given, [])
    assert unsendable([*messages, user(2)]) is None
    assert normalise(messages, []) == messages
    return messages


def test_anthropic_blocks_of_a_call_without_a_name_are_dropped():
    content: Any = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "c1", "name": "", "input": {}},
        {"type": "input_json_delta", "partial_json": '{"a'},
    ]
    invalid: Any = [{"type": "invalid_tool_call", "id": "c1", "name": "", "args": '{"a', "error": None}]
    messages = mended(AIMessage(content, id="a", invalid_tool_calls=invalid))
    assert messages[1].content == content[:2]
    assert messages[1].invalid_tool_calls == []


def test_openai_calls_in_additional_kwargs_are_dropped():
    listed = [{"id": "c1", "type": "function", "function": {"name": "tool", "arguments": '{"a'}}]
    message = AIMessage("I look.", id="a", additional_kwargs={"tool_calls": listed, "refusal": None})
    assert message.invalid_tool_calls, "the client files it apart"
    messages = mended(message)
    assert messages[1].additional_kwargs == {"refusal": None}
    assert words(messages)[1:] == [("ai", "I look.")]


def test_a_call_of_the_responses_api_goes_with_the_thought_that_led_to_it():
    content: Any = [
        {"type": "text", "text": "I look."},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "tool", "arguments": '{"a'},
        {"type": "web_search_call", "id": "ws_1", "status": "in_progress"},
    ]
    invalid: Any = [{"type": "invalid_tool_call", "id": "c1", "name": "tool", "args": '{"a', "error": None}]
    message = AIMessage(
        content, id="a", invalid_tool_calls=invalid, response_metadata={"id": "resp_1", "model": "m"}
    )
    messages = mended(message)
    assert messages[1].content == content[:1]
    assert messages[1].response_metadata == {"model": "m"}, "the provider remembers the call under this id"


def test_a_server_side_call_stays_only_with_its_result():
    content: Any = [
        {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
        {"type": "text", "text": "found"},
        {"type": "server_tool_use", "id": "s2", "name": "web_search", "input": {}},
    ]
    assert normalise([user(), AIMessage(content, id="a")], [])[1].content == content[:3]


def test_a_broken_call_that_was_answered_stays_as_one_that_can_be_sent():
    invalid: Any = [{"type": "invalid_tool_call", "id": "c1", "name": "tool", "args": '{"a', "error": "no"}]
    answer = ToolMessage("These arguments are no JSON.", tool_call_id="c1", id="t", status="error")
    messages = mended(AIMessage("", id="a", invalid_tool_calls=invalid), answer, AIMessage("ok", id="b"))
    assert messages[1].tool_calls == [{"type": "tool_call", "id": "c1", "name": "tool", "args": {}}]
    assert messages[2] == answer
    assert len(messages) == 4


def test_a_call_that_the_log_still_holds_open_is_cancelled_since_nothing_runs_any_more():
    calls = [called("c1", status=ToolStatus.RUNNING, effect=None, started=True)]
    messages = normalise([user(), asking("c1")], [turn(1, said("a1", calls=calls), status=None)])
    assert engine_mark(messages[2]) == "cancelled"
    assert "while it ran" in messages[2].text


def test_results_go_to_the_nearest_message_when_ids_are_used_again():
    given = [
        user(),
        asking("0", id="a"),
        ToolMessage("first", tool_call_id="0", id="t1"),
        AIMessage("x", id="x"),
    ]
    given += [
        user(2),
        asking("0", id="b"),
        ToolMessage("second", tool_call_id="0", id="t2"),
        AIMessage("y", id="y"),
    ]
    assert normalise(given, []) == given


def test_a_second_result_of_a_call_and_an_empty_answer_are_dropped():
    messages = mended(
        asking("c1"), result("c1"), ToolMessage("again", tool_call_id="c1", id="t2"), AIMessage("", id="e")
    )
    assert [message.type for message in messages] == ["human", "ai", "tool", "ai"]
    assert messages[2].text == "real c1"


def test_what_is_in_form_already_comes_out_as_the_same_objects():
    given = [user(), asking("c1", "c2"), result("c1"), result("c2"), AIMessage("done", id="d")]
    assert all(map(operator.is_, normalise(given, []), given))


def test_the_mark_of_an_interrupted_answer_is_not_sent_to_providers():
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    messages = normalise([user()], [turn(1, said("m", "half", "interrupted"))])
    assert engine_mark(messages[-1]) == "interrupted"
    for model in (ChatOpenAI(model="m", api_key="k"), ChatAnthropic(model="m", api_key="k")):
        sent = model._get_request_payload([*messages, user(2)])
        assert "turnkeeper" not in repr(sent)
        assert "half" in repr(sent)

"""Errors under /v1/ have OpenAI's form, whoever raised them, and refused requests leave nothing behind."""

import json

import pytest

from chat.access import open_connections, throttles
from runs.models import Run, Session
from tests.chat.api.programs import UNKNOWN
from tests.chat.live import Http, bearer
from tests.chat.openai.completions import body, call, complete, error_of, request, stream, whole
from tests.fakes import ScriptedModel

pytestmark = pytest.mark.django_db(transaction=True)

USER = {"role": "user", "content": "hello"}


@pytest.mark.parametrize(
    ("fields", "status", "code", "param"),
    [
        ({"model": "gpt-4"}, 404, "model_not_found", "model"),
        ({"model": None}, 400, "invalid", "model"),
        ({"messages": []}, 400, "invalid", "messages"),
        ({"messages": "hello"}, 400, "invalid", "messages"),
        ({"messages": [USER, {"role": "assistant", "content": "x"}]}, 400, "invalid", "messages[1]"),
        ({"messages": [1]}, 400, "invalid", "messages[0]"),
        ({"messages": [1, USER]}, 400, "invalid", "messages[0]"),
        ({"messages": [{"role": "user"}]}, 400, "invalid", "messages[0].content"),
        ({"messages": [{"role": "user", "content": "  "}]}, 400, "invalid", "messages[0]"),
        ({"messages": [{"role": "user", "content": 7}]}, 400, "invalid", "messages[0].content"),
        ({"messages": [{"role": "robot", "content": "x"}, USER]}, 400, "invalid", "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}, USER]}, 400, "invalid", "messages[0]"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}, USER]}, 400, "unsupported_parameter",
         "messages[0].tool_calls[0]"),
        *(({"messages": [{"role": "assistant", "tool_calls": calls}, USER]}, 400, "invalid",
           "messages[0].tool_calls") for calls in (5, 1.5, True, "x", {"id": "c"})),
        ({"messages": [{"role": "assistant", "content": "x", "tool_calls": None}, USER]}, 200, None, None),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, 400,
         "unsupported_parameter", "messages[0].content"),
        ({"tools": [{"type": "function"}]}, 400, "unsupported_parameter", "tools"),
        ({"functions": [{}]}, 400, "unsupported_parameter", "functions"),
        ({"n": 2}, 400, "unsupported_parameter", "n"),
        ({"logprobs": True}, 400, "unsupported_parameter", "logprobs"),
        ({"response_format": {"type": "json_object"}}, 400, "unsupported_parameter", "response_format"),
        ({"modalities": ["audio"]}, 400, "unsupported_parameter", "modalities"),
        ({"stream": "yes"}, 400, "invalid", "stream"),
        ({"stream_options": []}, 200, None, None),
        ({"stream_options": 5}, 400, "invalid", "stream_options"),
        ({"on_disconnect": "explode"}, 400, "invalid", "on_disconnect"),
    ],
)  # fmt: skip
async def test_a_wrong_request_is_refused_with_the_name_of_the_field(
    engine, model, alice, fields, status, code, param
):
    answer = await call(alice, "POST", "chat/completions", body(**{"messages": [USER]} | fields))
    assert answer.status == status
    if code:
        assert error_of(answer) == (status, code)
        assert answer.json()["error"]["param"] == param
        assert not await Session.objects.aexists()


@pytest.mark.parametrize("bad", ["a\x00b", "a\ud800b"])
async def test_what_cannot_be_stored_is_refused_wherever_it_stands(engine, model, alice, bad):
    arguments = json.dumps({"x": bad})
    asked = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    for messages in (
        [{"role": "user", "content": bad}],
        [{"role": "system", "content": bad}, USER],
        [{"role": "user", "content": [{"type": "text", "text": bad}]}, USER],
        [{"role": "assistant", "tool_calls": [asked]}, result, USER],
    ):
        answer = await call(alice, "POST", "chat/completions", body(messages=messages))
        assert error_of(answer) == (400, "invalid"), messages
    assert not await Session.objects.aexists()


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999", "-1e20", str(2**63), str(-(10**30))])
async def test_a_call_with_a_number_that_cannot_be_kept_is_refused(engine, model, alice, number):
    function = {"name": "f", "arguments": f'{{"x": [{number}]}}'}
    asked = {"id": "c", "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    messages = [{"role": "assistant", "tool_calls": [asked]}, result, USER]
    answer = await call(alice, "POST", "chat/completions", body(messages=messages))
    assert error_of(answer) == (400, "invalid")
    assert answer.json()["error"]["param"] == "messages[0].tool_calls[0]"
    assert not await Session.objects.aexists()


async def test_the_largest_numbers_that_can_be_kept_go_on_to_the_model(engine, model, alice):
    arguments = json.dumps({"x": [2**63 - 1, -9.2e18, 1e-300, True]})
    asked = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    messages = [{"role": "assistant", "tool_calls": [asked]}, result, USER]
    answer = await call(alice, "POST", "chat/completions", body(messages=messages))
    assert answer.status == 200
    again = await complete(alice, "more", headers={"x-session-id": answer.headers["x-session-id"]})
    assert again.status == 200


async def test_a_message_that_is_too_long_is_a_413(engine, model, alice, settings):
    settings.RUNS_MESSAGE_LIMIT = 10
    assert error_of(await complete(alice, "x" * 11)) == (413, "too_large")
    assert error_of(await complete(alice, "x" * 11, "hello")) == (413, "too_large")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"", "application/json", 400),
        (b"[]", "application/json", 400),
        (b"null", "application/json", 400),
        (b'{"model": "a\xff"}', "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b'{"x": "' + b"x" * 3_000_000 + b'"}', "application/json", 413),
        (b"a=b", "application/x-www-form-urlencoded", 415),
    ],
)
async def test_a_body_that_is_no_object_in_json_is_refused(engine, model, alice, content, kind, status):
    headers = {**await bearer(alice), "content-type": kind, "content-length": str(len(content))}
    http = Http("POST", "/v1/chat/completions", None, headers)
    http._content = content
    assert error_of(await whole(http))[0] == status


@pytest.mark.parametrize("path", ["chat/completions", "models", "models/assistant"])
@pytest.mark.parametrize("authorization", [None, "Bearer nonsense", "Bearer ", "Basic YTpi"])
async def test_without_a_good_token_it_is_a_401(engine, model, path, authorization):
    headers = {"authorization": authorization} if authorization else {}
    method, content = ("POST", body()) if path == "chat/completions" else ("GET", None)
    answer = await call(None, method, path, content, **headers)
    assert error_of(answer) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert not await Run.objects.aexists()


async def test_a_session_cookie_is_no_token(engine, model, alice, client):
    from runs.foundation.database import in_thread

    await in_thread(client.force_login, alice)
    cookie = f"sessionid={client.cookies['sessionid'].value}"
    assert error_of(await call(None, "GET", "models", cookie=cookie)) == (401, "invalid_api_key")


async def test_a_foreign_session_and_an_unknown_one_are_the_same(engine, model, alice, bob):
    hers = (await complete(alice)).headers["x-session-id"]
    answers = [
        await complete(bob, headers={"x_session_id": session}) for session in (hers, UNKNOWN, "no-uuid")
    ]
    assert {error_of(answer) for answer in answers} == {(404, "not_found")}
    assert len({answer.body for answer in answers}) == 1


async def test_an_operator_owns_no_more_than_others(engine, model, alice, olivia):
    hers = (await complete(alice)).headers["x-session-id"]
    assert error_of(await complete(olivia, headers={"x_session_id": hers})) == (404, "not_found")


async def test_a_session_of_another_agent_is_a_mismatch(engine, model, alice):
    session = (await complete(alice)).headers["x-session-id"]
    refused = await complete(alice, model="other", headers={"x_session_id": session})
    assert error_of(refused) == (409, "agent_mismatch")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "", 404),
        ("POST", "completions", 404),
        ("POST", "chat/completions/", 404),
        ("GET", "chat/completions", 405),
        ("POST", "models", 405),
        ("DELETE", "models/assistant", 405),
        ("GET", "models/%00", 404),
    ],
)
async def test_an_address_or_a_method_that_is_none_of_ours(engine, model, alice, method, path, status):
    assert error_of(await call(alice, method, path, {} if method == "POST" else None))[0] == status


async def test_an_unknown_host_is_told_in_the_same_form(engine, model, alice):
    assert error_of(await call(alice, "GET", "models", host="evil.example"))[0] == 400


async def test_a_crash_is_told_in_the_same_form(engine, model, alice, monkeypatch):
    from runs import operations

    def broken():
        raise RuntimeError("secret")

    monkeypatch.setattr(operations, "agents", broken)
    answer = await call(alice, "GET", "models")
    assert error_of(answer) == (500, "internal")
    assert b"secret" not in answer.body


async def test_turn_starts_have_a_limit(engine, model, alice, monkeypatch):
    from django.core.cache import cache

    cache.clear()
    monkeypatch.setattr(throttles.TurnStarts, "rate", "1/min")
    assert (await complete(alice)).status == 200
    refused = await complete(alice)
    assert error_of(refused) == (429, "throttled")
    assert refused.json()["error"]["type"] == "rate_limit_error"
    assert int(refused.headers["retry-after"]) > 0
    cache.clear()


async def test_open_answers_have_a_limit(engine, model, held, alice, monkeypatch):
    monkeypatch.setitem(open_connections.LIMITS, open_connections.Kind.STREAM, 1)
    _, http = await stream(alice)
    refused = await complete(alice)
    assert error_of(refused) == (429, "throttled")
    assert int(refused.headers["retry-after"]) > 0
    held.open()
    await http.disconnect()


async def test_a_server_that_shuts_down_takes_no_turns(engine, model, alice):
    engine.leaving = True
    assert error_of(await complete(alice)) == (503, "unavailable")
    assert not await Session.objects.aexists()


@pytest.mark.parametrize("accept", ["*/*", "", "text/event-stream", "text/html", "application/json"])
async def test_accept_decides_nothing(engine, alice, serve, accept):
    from tests.fakes import plain_graph

    serve(lambda: plain_graph(ScriptedModel()))
    good = await complete(alice, headers={"accept": accept})
    assert (good.status, good.headers["content-type"]) == (200, "application/json")
    answer, http = await stream(alice, headers={"accept": accept})
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
    await http.disconnect()
    assert error_of(await complete(alice, model="none", headers={"accept": accept}))[0] == 404
    refused = await whole(await request(None, "POST", "chat/completions", body(stream=True), accept=accept))
    assert error_of(refused)[0] == 401

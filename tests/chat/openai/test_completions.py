"""Turns over OpenAI's protocol: the same runs as everywhere, in that protocol's words."""

import asyncio

import pytest

from chat.access import open_connections
from runs import operations, this_process
from runs.foundation.database import in_thread
from runs.models import Cancellation, Run, Session
from runs.states import RunStatus
from tests.chance import TRIES, timing
from tests.chat.live import eventually
from tests.chat.openai.completions import (
    body,
    call,
    complete,
    data_of,
    error_of,
    request,
    stream,
    text_of,
)
from tests.fakes import Failure, Round, say, text
from tests.fakes import call as tool_call
from tests.provider import Usage, spelled

pytestmark = pytest.mark.django_db(transaction=True)


async def ended(run: str, status: str) -> None:
    await eventually(lambda: in_thread(Run.objects.filter(id=run, status=status).exists))


def all_let_go() -> bool:
    return (
        open_connections.count()[open_connections.Kind.STREAM] == 0 and this_process.engine.hub.followers == 0
    )


class TestWhole:
    """Without ``stream``."""

    async def test_a_completion_is_a_run_of_a_session(self, engine, model, alice):
        model.script.add(say("Hello there.", usage=Usage(12, 5)))
        answer = await complete(alice, "hello")
        found = answer.json()
        run = await Run.objects.select_related("session").aget()
        assert answer.status == 200
        assert answer.headers["x-run-id"] == str(run.id)
        assert answer.headers["x-session-id"] == str(run.session_id)
        assert (run.status, run.on_disconnect, run.session.origin) == ("completed", "cancel", "api")
        assert found["object"] == "chat.completion"
        assert found["model"] == "assistant"
        assert found["choices"] == [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello there.", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ]
        assert found["usage"] == {
            "prompt_tokens": 12, "completion_tokens": 5, "total_tokens": 17, "estimated": False
        }  # fmt: skip
        await eventually(all_let_go)

    async def test_usage_that_nobody_reported_is_null_or_marked(self, engine, model, alice):
        model.script.add(say("Hello there.", style="none"))
        usage = (await complete(alice)).json()["usage"]
        assert usage is None or usage["estimated"] is True

    async def test_the_messages_before_the_last_are_what_the_model_sees(self, engine, model, alice):
        asked = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"x": 1}'}}
        await complete(
            alice,
            {"role": "developer", "content": "Be brief."},
            "one",
            {"role": "assistant", "content": None, "tool_calls": [asked]},
            {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "seen"}]},
            {"role": "assistant", "content": "two"},
            {"role": "user", "content": [{"type": "text", "text": part} for part in ("three", "four")]},
        )
        sent = model.calls[0].messages
        assert [(message["role"], message["content"]) for message in sent] == [
            ("system", "Be brief."), ("user", "one"), ("assistant", ""), ("tool", "seen"),
            ("assistant", "two"), ("user", "three\nfour"),
        ]  # fmt: skip
        assert sent[2]["tool_calls"][0]["id"] == "c1"

    async def test_with_a_session_only_the_last_message_counts(self, engine, model, alice):
        first = await complete(alice, "one")
        session = first.headers["x-session-id"]
        second = await complete(
            alice, {"role": "user", "content": "never said"}, "two", headers={"x_session_id": session}
        )
        assert second.headers["x-session-id"] == session
        assert [message["content"] for message in model.calls[-1].messages] == ["one", "All right.", "two"]
        assert await Session.objects.acount() == 1

    async def test_several_messages_are_one_text(self, engine, model, alice, marks):
        model.script.add(Round(text("Let me see."), spelled("mark", {"x": "1"})), say("Done."))
        assert (await complete(alice)).json()["choices"][0]["message"]["content"] == "Let me see.\n\nDone."
        assert marks.read() == ["1"]

    async def test_sampling_options_and_unknown_fields_are_ignored(self, engine, model, alice):
        answer = await complete(
            alice, temperature=0.1, top_p=1, max_tokens=5, stop=["x"], seed=1, user="u", whatever={"a": 1},
            n=1, tools=[], logprobs=False, response_format={"type": "text"}, stream_options=None,
        )  # fmt: skip
        assert answer.status == 200

    @pytest.mark.parametrize(
        ("rounds", "status", "code"),
        [
            ([Round(Failure(500, "It broke."))], 502, "provider"),
            ([tool_call("ask", question="Sure?")], 409, "run_waiting"),
        ],
    )
    async def test_a_run_without_an_answer_is_an_error_that_is_not_repeated(
        self, engine, model, alice, rounds, status, code
    ):
        model.script.add(*rounds)
        answer = await complete(alice)
        run = str((await Run.objects.aget()).id)
        assert error_of(answer) == (status, code)
        assert answer.headers["x-should-retry"] == "false"
        assert answer.headers["x-run-id"] == answer.json()["error"]["run"] == run
        await eventually(all_let_go)

    async def test_a_run_that_passes_its_deadline_is_a_504(self, engine, model, alice, held, settings):
        settings.RUNS_RUN_TIMEOUT = 0.2
        assert error_of(await complete(alice)) == (504, "timeout")

    async def test_an_exception_in_the_graph_is_a_500(self, engine, alice, serve):
        from langgraph.graph import START, MessagesState, StateGraph

        def broken():
            graph = StateGraph(MessagesState)
            graph.add_node("node", lambda state: 1 / 0)
            graph.add_edge(START, "node")
            return graph

        serve(broken)
        assert error_of(await complete(alice)) == (500, "internal")

    async def test_a_waiting_run_goes_on_waiting_after_its_client_was_told(self, engine, model, alice):
        model.script.add(tool_call("ask", question="Sure?"), say("Fine."))
        await complete(alice)
        run = await Run.objects.aget()
        assert run.status == RunStatus.WAITING
        await in_thread(operations.answer, alice, run.id, {run.questions[0]["id"]: "Yes"})
        await ended(run.id, "completed")

    async def test_somebody_elses_cancel_is_told(self, engine, model, held, alice):
        asking = asyncio.create_task(complete(alice))
        await held.reached()
        run = await Run.objects.aget()
        await in_thread(operations.cancel_run, alice, run.id)
        assert error_of(await asking) == (409, "run_cancelled")
        assert (await Cancellation.objects.aget()).source == "user"


class TestStream:
    """With ``stream``."""

    async def test_chunks_come_as_the_model_gives_them(self, engine, model, held, alice):
        answer, http = await stream(alice)
        assert answer.status == 200
        assert answer.headers["content-type"] == "text/event-stream"
        assert "no-cache" in answer.headers["cache-control"]
        assert "no-transform" in answer.headers["cache-control"]
        assert answer.headers["x-accel-buffering"] == "no"
        run = await Run.objects.aget()
        assert answer.headers["x-run-id"] == str(run.id)
        first = await http.block()
        second = await http.block()  # while the model is held
        assert '"delta":{"role":"assistant","content":""}' in first["data"]
        assert '"delta":{"content":"Hello "}' in second["data"]
        held.open()
        chunks = await data_of(http)
        assert text_of(chunks) == "world"
        assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[-2:-1]] == ["stop"]
        assert chunks[-1] == "[DONE]"
        assert {chunk["id"] for chunk in chunks[:-1]} == {f"chatcmpl-{run.id}"}
        assert not any("usage" in chunk for chunk in chunks[:-1])
        await eventually(all_let_go)

    async def test_usage_comes_on_a_chunk_of_its_own_when_asked_for(self, engine, model, alice):
        model.script.add(say("Hello there.", usage=Usage(12, 5)))
        _, http = await stream(alice, stream_options={"include_usage": True})
        *chunks, last, done = await data_of(http)
        assert all(chunk["usage"] is None for chunk in chunks)
        assert (last["choices"], last["usage"]["total_tokens"], done) == ([], 17, "[DONE]")

    async def test_the_text_of_a_stream_and_of_a_completion_is_the_same(self, engine, model, alice, marks):
        rounds = [Round(text("Let me see."), spelled("mark", {"x": "1"})), say("Done.")]
        model.script.add(*rounds, *rounds)
        _, http = await stream(alice)
        streamed = await data_of(http)
        assert text_of(streamed) == (await complete(alice)).json()["choices"][0]["message"]["content"]
        told = [chunk["turnkeeper"]["event"] for chunk in streamed[:-1] if "turnkeeper" in chunk]
        assert [event["type"] for event in told] == ["tool.started", "tool.completed"]
        assert told[0]["data"]["name"] == "mark"

    @pytest.mark.parametrize(
        ("rounds", "code"),
        [
            ([Round(text("one"), Failure(500, "It broke."))], "provider"),
            ([Round(text("Sure? "), spelled("ask", {"question": "?"}))], "run_waiting"),
        ],
    )
    async def test_a_failure_ends_the_stream_with_an_error(self, engine, model, alice, rounds, code):
        model.script.add(*rounds)
        _, http = await stream(alice)
        *_, last = await data_of(http)
        assert last["error"]["code"] == code
        assert last["error"]["run"] == str((await Run.objects.aget()).id)
        await eventually(all_let_go)
        assert not await Cancellation.objects.aexists()

    async def test_somebody_elses_cancel_ends_the_stream_with_an_error(self, engine, model, held, alice):
        _, http = await stream(alice)
        await held.reached()
        await in_thread(operations.cancel_run, alice, (await Run.objects.aget()).id)
        chunks = await data_of(http)
        assert chunks[-1]["error"]["code"] == "run_cancelled"
        assert "[DONE]" not in chunks

    async def test_an_idle_stream_is_kept_alive(self, engine, model, held, alice, monkeypatch):
        from chat.access import run_connections

        monkeypatch.setattr(run_connections, "KEEP_ALIVE", 0.05)
        _, http = await stream(alice)
        await held.reached()
        while "" not in (block := await http.block()):
            assert "data" in block
        await http.disconnect()

    async def test_a_server_that_shuts_down_says_so_and_cancels_nothing(self, engine, model, held, alice):
        _, http = await stream(alice)
        await held.reached()
        open_connections.end_all()
        chunks = await data_of(http)
        assert chunks[-1]["error"]["code"] == "unavailable"
        held.open()
        await ended((await Run.objects.aget()).id, "completed")

    async def test_a_deleted_session_ends_the_stream_with_an_error(self, engine, model, held, alice):
        answer, http = await stream(alice)
        await held.reached()
        await operations.delete_session(alice, answer.headers["x-session-id"])
        assert "error" in (await data_of(http))[-1]


class TestDisconnect:
    """Nobody could come back to the run: it is cancelled, unless something else was asked for."""

    @pytest.mark.parametrize("streaming", [True, False])
    async def test_a_client_that_goes_takes_its_run_along(self, engine, model, held, alice, streaming):
        http = await request(alice, "POST", "chat/completions", body(stream=streaming))
        await http.send_input({"type": "http.request", "body": http._content})
        await held.reached()
        await http.disconnect()
        run = await Run.objects.aget()
        await ended(run.id, "cancelled")
        cancellation = await Cancellation.objects.aget()
        assert (cancellation.source, cancellation.outcome) == ("disconnect", "cancelled")
        assert model.calls[0].outcome == "closed"
        await eventually(all_let_go)

    async def test_a_tool_is_told_that_the_client_has_gone(self, engine, model, alice, marks):
        model.script.add(tool_call("heeding_sync", seconds=60))
        http = await request(alice, "POST", "chat/completions", body())
        await http.send_input({"type": "http.request", "body": http._content})
        await marks.seen("heeding_sync started")
        await http.disconnect()
        await marks.seen("heeding_sync cancelled")
        await ended((await Run.objects.aget()).id, "cancelled")

    @pytest.mark.parametrize("streaming", [True, False])
    async def test_continue_can_be_asked_for(self, engine, model, held, alice, streaming):
        content = body(stream=streaming, on_disconnect="continue")
        http = await request(alice, "POST", "chat/completions", content)
        await http.send_input({"type": "http.request", "body": http._content})
        await held.reached()
        await http.disconnect()
        held.open()
        await ended((await Run.objects.aget()).id, "completed")

    async def test_a_disconnect_after_the_end_changes_nothing(self, engine, model, alice):
        _, http = await stream(alice)
        while "[DONE]" not in (await http.block())["data"]:
            pass
        await http.disconnect()
        assert (await Run.objects.aget()).status == "completed"
        assert not await Cancellation.objects.aexists()

    @pytest.mark.slow
    @pytest.mark.timeout(max(120, 2 * TRIES))
    async def test_a_disconnect_against_the_natural_end_gives_one_terminal_fact(
        self, engine, model, alice, monkeypatch
    ):
        monkeypatch.setattr("chat.access.throttles.TurnStarts.rate", "1000/second")
        chance = timing()
        for _ in range(TRIES):
            _, http = await stream(alice, "hello")
            await http.block()
            await asyncio.sleep(chance.uniform(0, 0.05))
            await http.disconnect()
        await eventually(
            lambda: in_thread(lambda: not Run.objects.exclude(status__in=("completed", "cancelled")).exists())
        )
        for run in [run async for run in Run.objects.all()]:
            terminal = run.events.filter(type__in=("run.completed", "run.cancelled"))
            assert [event.type async for event in terminal] == [f"run.{run.status}"]
            assert (run.status == "cancelled") == await run.cancellations.aexists()


class TestIdempotency:
    """The header Idempotency-Key."""

    async def test_the_same_key_is_one_run(self, engine, model, alice):
        key = {"idempotency_key": "k"}
        first, second = await asyncio.gather(
            complete(alice, "hello", headers=key), complete(alice, "hello", headers=key)
        )
        third = await complete(alice, "hello", headers=key)
        assert {answer.headers["x-run-id"] for answer in (first, second, third)} == {
            first.headers["x-run-id"]
        }
        assert first.json() == second.json() == third.json()
        assert len(model.calls) == 1

    async def test_the_same_key_with_another_body_is_a_conflict(self, engine, model, alice):
        key = {"idempotency_key": "k"}
        await complete(alice, "hello", headers=key)
        assert error_of(await complete(alice, "other", headers=key)) == (409, "idempotency_conflict")
        assert error_of(await complete(alice, "before", "hello", headers=key)) == (
            409,
            "idempotency_conflict",
        )
        assert error_of(await complete(alice, headers={"idempotency_key": "k" * 256})) == (400, "invalid")

    async def test_a_key_holds_in_a_session_too(self, engine, model, alice):
        session = (await complete(alice, "one")).headers["x-session-id"]
        headers = {"x_session_id": session, "idempotency_key": "k"}
        first, second = [await complete(alice, "two", headers=headers) for _ in range(2)]
        assert first.headers["x-run-id"] == second.headers["x-run-id"]
        assert len(model.calls) == 2


class TestModels:
    """The agents, as models."""

    async def test_every_configured_agent_is_a_model(self, engine, model, alice):
        found = (await call(alice, "GET", "models")).json()
        assert [one["id"] for one in found["data"]] == ["assistant", "other"]
        assert (await call(alice, "GET", "models/other")).json() == found["data"][1]
        assert error_of(await call(alice, "GET", "models/none")) == (404, "model_not_found")

    async def test_a_model_is_the_agent_that_answers(self, engine, model, alice):
        assert (await complete(alice, model="other")).json()["model"] == "other"
        assert (await Session.objects.aget()).agent == "other"


async def test_two_turns_at_once_in_a_session_are_refused(engine, model, held, alice):
    answer, http = await stream(alice)
    await held.reached()
    headers = {"x_session_id": answer.headers["x-session-id"]}
    refused = await complete(alice, headers=headers)
    assert error_of(refused) == (409, "run_active")
    assert refused.headers["x-should-retry"] == "false"
    held.open()
    assert (await data_of(http))[-1] == "[DONE]"


async def test_no_title_is_generated_for_a_session_in_no_list(engine, alice, serve):
    from runs.agents import agent
    from tests.fakes import ScriptedModel, plain_graph

    asked = []

    async def generate(user, said):
        asked.append(user)
        return "Generated"

    serve(agent(generate_title=generate)(lambda: plain_graph(ScriptedModel())))
    await complete(alice, "first words")
    await asyncio.gather(*engine._after)
    assert asked == []
    assert (await Session.objects.aget()).title == "first words"

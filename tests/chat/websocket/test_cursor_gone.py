"""410 cursor_gone: what a client is told whose cursor points into a log that has been made compact."""

import pytest

from runs import operations
from runs.foundation.database import in_thread
from runs.log import compaction
from runs.models import Run
from runs.states import RunStatus
from tests.chat.live import Http, bearer, call, eventually, socket, stream
from tests.fakes import Marks, Round, ScriptedModel, numbered, plain_graph, tools

pytestmark = pytest.mark.django_db(transaction=True)

BODY = {"input": "hello"}


@pytest.fixture
def session(transactional_db, serve, tmp_path, alice):
    """A session of alice's whose agent says twenty words."""
    model = ScriptedModel(Round(numbered(20, delay=0.002)))
    serve(lambda: plain_graph(model, tools(Marks(tmp_path / "marks"))))
    return operations.create_session(alice)["id"]


@pytest.fixture
async def compacted(engine, session, alice):
    """A run whose log is compact; (its id, the last event that is gone, its last event)."""
    run_id = (await in_thread(operations.start_turn, alice, session, key="once", text="hello"))["id"]
    ended = Run.objects.filter(id=run_id, status=RunStatus.COMPLETED, repaired=True)
    run = await eventually(lambda: in_thread(ended.first))
    await compact(run)
    await in_thread(run.refresh_from_db)
    return run_id, run.compacted_to, run.last_seq


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_rest_and_event_streams_answer_410(compacted, alice, accept, method):
    run_id, gone, _ = compacted
    for query, headers in (("", {}), ("?after=1", {}), ("", {"last-event-id": str(gone - 1)})):
        answer = await call(alice, method, f"runs/{run_id}/events/{query}", accept=accept, **headers)
        assert answer.status == 410
        if method == "GET":
            assert answer.json()["error"] == {
                "code": "cursor_gone",
                "message": "The log before this point has been compacted."
                " Reload the history and follow from its last_seq.",
            }


async def test_a_cursor_behind_what_is_gone_is_as_good_as_ever(compacted, alice):
    run_id, gone, last = compacted
    page = await call(alice, "GET", f"runs/{run_id}/events/?after={gone}", accept="application/json")
    assert [event["seq"] for event in page.json()["events"]] == list(range(gone + 1, last + 1))
    answer, http = await stream(alice, f"runs/{run_id}/events/", **{"last-event-id": str(gone)})
    assert [event["seq"] for event in await http.events()] == list(range(gone + 1, last + 1))
    assert answer.status == 200


@pytest.mark.parametrize("beyond", [0, 1])
async def test_at_or_past_the_end_there_is_nothing_as_before(compacted, alice, beyond):
    run_id, _, last = compacted
    answer = await call(
        alice, "GET", f"runs/{run_id}/events/?after={last + beyond}", accept="text/event-stream"
    )
    assert (answer.status, answer.body) == (204, b"")


async def test_a_socket_is_told_and_closed(compacted, alice, session):
    run_id, gone, _ = compacted
    for after in (0, gone - 1):
        async with socket(alice, session, f"?run={run_id}&after={after}") as client:
            frame = await client.frame()
            assert (frame["type"], frame["request_id"], frame["code"]) == ("error", None, "cursor_gone")
            assert await client.closed() == 1000


async def test_the_history_that_a_client_loads_then_leads_on(compacted, alice, session):
    history = (await call(alice, "GET", f"sessions/{session}/history/")).json()
    assert history["messages"][-1]["text"].split()[-1] == "w20"
    query = f"?run={history['run']['id']}&after={history['run']['last_seq']}"
    async with socket(alice, session, query) as client:
        assert (await client.frame())["type"] == "session.state_changed"
        assert (await client.ask("turn.start", input="more"))["type"] == "response"


async def test_a_turn_that_is_asked_for_again_is_the_same_turn_and_has_no_stream_any_more(
    compacted, alice, session
):
    run_id, _, _ = compacted
    answer, http = await stream(alice, f"sessions/{session}/runs/", BODY, **{"idempotency-key": "once"})
    assert answer.status == 410
    await http.wait()
    answer = await call(alice, "POST", f"sessions/{session}/runs/", BODY, **{"idempotency-key": "once"})
    assert (answer.status, answer.json()["id"]) == (202, run_id)


async def test_the_openai_protocol_says_so_too(engine, session, alice):
    body = {"model": "assistant", "messages": [{"role": "user", "content": "hello"}]}
    headers = {**(await bearer(alice)), "x-session-id": session, "idempotency-key": "once"}
    first = Http("POST", "/v1/chat/completions", body, headers)
    assert (await first.begin()).status == 200
    await first.wait()
    await compact(await in_thread(Run.objects.get))

    again = Http("POST", "/v1/chat/completions", body, headers)
    assert (await again.begin()).status == 410
    assert b"cursor_gone" in (await again.receive_output())["body"]
    await again.wait()


async def compact(run):
    done = await in_thread(list, compaction.compact(run.finished_at.replace(year=9999), 1000))
    assert [batch.runs for batch in done] == [1]

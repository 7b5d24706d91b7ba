"""Turns over REST: started once however often they are posted, cancelled, answered, resumed."""

import asyncio
from uuid import uuid4

import pytest

from runs import operations
from runs.foundation.database import in_thread
from runs.models import Cancellation, Run, RunEvent, Session
from runs.states import TERMINAL_EVENT, RunStatus
from tests.chance import TRIES, timing
from tests.chat.api.programs import UNKNOWN, a_run, error_of, message_of, open_session
from tests.chat.live import Http, bearer, call, eventually
from tests.fakes import call as tool_call
from tests.fakes import say

RUN = {
    "id", "session", "position", "status", "resolution", "on_disconnect", "resumes", "retries", "error",
    "questions", "cancellation", "statistics", "last_seq", "created_at", "started_at", "finished_at",
    "stragglers",
}  # fmt: skip
CANCELLATION = {
    "id", "session", "run", "source", "reason", "requested_by", "accepted_at", "settled_at", "outcome",
    "escalated",
}  # fmt: skip


async def ended(run: str, status: str) -> None:
    await eventually(lambda: in_thread(Run.objects.filter(id=run, status=status).exists))


class TestStart:
    """POST /api/sessions/{id}/runs/"""

    def test_a_start_is_one_run_whose_message_is_durable(self, alice, as_alice):
        session = open_session(alice)
        started = as_alice.post(f"sessions/{session}/runs/", {"input": "hello"})
        assert started.status_code == 202
        run = started.json()
        assert set(run) == RUN
        assert (run["session"], run["status"], run["on_disconnect"]) == (session, "queued", "continue")
        assert started["Location"] == f"/api/runs/{run['id']}/"
        assert as_alice.get(f"runs/{run['id']}/").json() == run
        (event,) = RunEvent.objects.filter(run=run["id"])
        assert (event.type, event.data["input"]) == ("run.queued", "hello")

    def test_the_same_key_and_body_give_the_same_run(self, alice, as_alice):
        path = f"sessions/{open_session(alice)}/runs/"
        first = as_alice.post(path, {"input": "hello"}, **{"Idempotency-Key": "k"})
        again = as_alice.post(path, {"input": "hello"}, **{"Idempotency-Key": "k"})
        assert (first.status_code, again.status_code) == (202, 202)
        assert first.json()["id"] == again.json()["id"]
        other = as_alice.post(path, {"input": "other"}, **{"Idempotency-Key": "k"})
        assert error_of(other) == (409, "idempotency_conflict")
        new = as_alice.post(path, {"input": "hello", "multitask": "enqueue"}, **{"Idempotency-Key": "new"})
        assert new.json()["id"] != first.json()["id"]
        assert Run.objects.count() == 2

    @pytest.mark.parametrize("key", ["", "   ", "x" * 256])
    def test_a_key_that_is_none_is_invalid(self, alice, as_alice, key):
        response = as_alice.post(
            f"sessions/{open_session(alice)}/runs/", {"input": "hello"}, **{"Idempotency-Key": key}
        )
        assert error_of(response) == (400, "invalid")
        assert "Idempotency-Key" in message_of(response)
        assert not Run.objects.exists()

    @pytest.mark.parametrize(
        "fields",
        [
            {"multitask": "maybe"},
            {"on_disconnect": "explode"},
            {"stream_modes": "updates"},
            {"stream_modes": ["tokens"]},
            {"stream_modes": [["updates"]]},
        ],
    )
    def test_a_wrong_option_is_refused_naming_it(self, alice, as_alice, fields):
        response = as_alice.post(f"sessions/{open_session(alice)}/runs/", {"input": "hello", **fields})
        assert error_of(response) == (400, "invalid")
        assert next(iter(fields)) in message_of(response)

    def test_reject_and_enqueue_do_what_they_say(self, alice, as_alice):
        session = open_session(alice)
        a_run(alice, RunStatus.RUNNING, session)
        path = f"sessions/{session}/runs/"
        assert error_of(as_alice.post(path, {"input": "x"})) == (409, "run_active")
        assert error_of(as_alice.post(path, {"input": "x", "multitask": "reject"})) == (409, "run_active")
        queued = as_alice.post(path, {"input": "x", "multitask": "enqueue"}).json()
        assert queued["status"] == "queued"
        assert [line["run"] for line in as_alice.get(f"sessions/{session}/").json()["queued"]] == [
            queued["id"]
        ]

    def test_what_is_queued_has_a_limit(self, alice, as_alice, settings):
        settings.RUNS_QUEUE_LIMIT = 2
        path = f"sessions/{open_session(alice)}/runs/"
        answers = [as_alice.post(path, {"input": "x", "multitask": "enqueue"}) for _ in range(4)]
        assert answers[0].status_code == 202
        assert error_of(answers[-1]) == (429, "throttled")

    def test_what_stopped_runs_have_left_at_work_has_a_limit(self, alice, bob, as_alice, as_bob):
        session, others = open_session(alice), open_session(bob)
        stopped = a_run(alice, RunStatus.CANCELLED, session)
        Run.objects.filter(id=stopped).update(stragglers=5)
        refused = as_alice.post(f"sessions/{session}/runs/", {"input": "x"})
        assert error_of(refused) == (429, "throttled")
        assert "still at work" in refused.json()["error"]["message"]
        assert as_alice.get(f"runs/{stopped}/").json()["stragglers"] == 5
        assert as_bob.post(f"sessions/{others}/runs/", {"input": "x"}).status_code == 202
        Run.objects.filter(id=stopped).update(stragglers=4)
        assert as_alice.post(f"sessions/{session}/runs/", {"input": "x"}).status_code == 202

    @pytest.mark.django_db(transaction=True)
    async def test_two_posts_in_the_same_moment_are_one_turn(self, engine, model, alice, session):
        headers = {"idempotency-key": "k", **await bearer(alice)}
        answers = await asyncio.gather(
            *(
                call(None, "POST", f"sessions/{session}/runs/", {"input": "hello"}, **headers)
                for _ in range(10)
            )
        )
        assert {answer.status for answer in answers} == {202}
        assert len({answer.json()["id"] for answer in answers}) == 1
        run = answers[0].json()["id"]
        await ended(run, "completed")
        later = await call(None, "POST", f"sessions/{session}/runs/", {"input": "hello"}, **headers)
        assert (later.status, later.json()["id"]) == (202, run)
        assert await Run.objects.acount() == 1
        assert len(model.calls) == 1

    @pytest.mark.django_db(transaction=True)
    async def test_a_post_whose_answer_nobody_read_is_found_by_the_next(self, engine, model, alice, session):
        headers = {"idempotency-key": "k", **await bearer(alice)}
        body = {"input": "hello"}
        lost = Http("POST", f"/api/sessions/{session}/runs/", body, headers)
        await lost.begin()
        await lost.disconnect()
        found = await call(None, "POST", f"sessions/{session}/runs/", body, **headers)
        assert found.status == 202
        assert await Run.objects.acount() == 1

    @pytest.mark.django_db(transaction=True)
    async def test_interrupt_takes_the_turn_and_is_not_touched_itself(
        self, engine, model, held, alice, session
    ):
        first = await in_thread(operations.start_turn, alice, session, "hello")
        await held.reached()
        second = await call(
            alice, "POST", f"sessions/{session}/runs/", {"input": "instead", "multitask": "interrupt"}
        )
        assert second.status == 202
        await ended(first["id"], "cancelled")
        await ended(second.json()["id"], "completed")
        assert (await Cancellation.objects.aget()).source == "superseded"


@pytest.mark.django_db(transaction=True)
class TestCancel:
    """POST .../cancel/"""

    async def test_a_cancel_is_accepted_first_and_settled_later(self, engine, model, alice, session):
        model.script.add(tool_call("heeding_sync", seconds=60))
        run = (await in_thread(operations.start_turn, alice, session, "hello"))["id"]
        await eventually(lambda: in_thread(RunEvent.objects.filter(run=run, type="tool.started").exists))
        accepted = await call(alice, "POST", f"runs/{run}/cancel/", {"reason": "enough"})
        assert set(accepted.json()) == CANCELLATION
        assert accepted.status == (202 if accepted.json()["outcome"] is None else 200)
        settled = await call(alice, "POST", f"runs/{run}/cancel/", {"wait": 20})
        assert (settled.status, settled.json()["outcome"]) == (200, "cancelled")
        assert (settled.json()["reason"], settled.json()["requested_by"]) == ("enough", "alice")
        assert settled.json()["id"] == accepted.json()["id"]

    @pytest.mark.parametrize("wait", [-1, 61, "soon", None, []])
    async def test_a_wait_out_of_bounds_is_invalid_and_cancels_nothing(self, engine, alice, session, wait):
        run = await in_thread(a_run, alice, RunStatus.RUNNING, session)
        answer = await call(alice, "POST", f"runs/{run}/cancel/", {"wait": wait})
        assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid")
        assert not await Cancellation.objects.aexists()

    async def test_a_wait_that_is_over_leaves_the_cancel_pending(self, alice, session):
        run = await in_thread(a_run, alice, RunStatus.RUNNING, session)  # and no worker that would stop it
        answer = await call(alice, "POST", f"runs/{run}/cancel/", {"wait": 0.1})
        assert answer.status in (200, 202)
        assert (answer.status == 202) == (answer.json()["outcome"] is None)

    async def test_the_cancel_goes_on_when_its_client_goes(self, engine, model, held, alice, session):
        run = (await in_thread(operations.start_turn, alice, session, "hello"))["id"]
        await held.reached()
        http = Http("POST", f"/api/runs/{run}/cancel/", {"wait": 60}, await bearer(alice))
        await http.send_input({"type": "http.request", "body": http._content})
        await eventually(lambda: in_thread(Cancellation.objects.exists))
        await http.disconnect()
        await ended(run, "cancelled")

    async def test_cancel_of_what_has_ended_says_so_and_changes_nothing(self, engine, model, alice, session):
        run = (await in_thread(operations.start_turn, alice, session, "hello"))["id"]
        await ended(run, "completed")
        before = await Session.objects.values().aget(id=session)
        answers = [
            await call(alice, "POST", path)
            for path in (f"runs/{run}/cancel/", f"runs/{run}/cancel/", f"sessions/{session}/cancel/")
        ]
        for answer in answers:
            assert answer.status == 200
            assert (answer.json()["id"], answer.json()["outcome"]) == (None, "already_finished")
        assert await Session.objects.values().aget(id=session) == before

    async def test_cancel_of_a_cancelled_run_gives_its_own_cancellation(
        self, engine, model, held, alice, session
    ):
        run = (await in_thread(operations.start_turn, alice, session, "hello"))["id"]
        await held.reached()
        first = await call(alice, "POST", f"runs/{run}/cancel/", {"wait": 20})
        again = await call(alice, "POST", f"runs/{run}/cancel/")
        assert again.status == 200
        assert again.json() == first.json()

    async def test_a_queued_and_a_waiting_run_end_at_once(self, engine, model, held, alice, session):
        await in_thread(operations.start_turn, alice, session, "hello")
        await held.reached()
        queued = await in_thread(operations.start_turn, alice, session, "more", multitask="enqueue")
        answer = await call(alice, "POST", f"runs/{queued['id']}/cancel/")
        assert (answer.status, answer.json()["outcome"]) == (200, "cancelled")

        model.script.add(tool_call("ask", question="Now?"), marker="question")
        other = await in_thread(operations.create_session, alice)
        waiting = await in_thread(operations.start_turn, alice, other["id"], "question")
        await ended(waiting["id"], "waiting")
        answer = await call(alice, "POST", f"runs/{waiting['id']}/cancel/")
        assert (answer.status, answer.json()["outcome"]) == (200, "cancelled")
        late = await call(alice, "POST", f"runs/{waiting['id']}/answer/", {"answers": {"q": "Yes"}})
        assert (late.status, late.json()["error"]["code"]) == (409, "not_waiting")

    async def test_a_session_cancel_ends_the_queue_too(self, engine, model, held, alice, session):
        first = await in_thread(operations.start_turn, alice, session, "hello")
        await held.reached()
        queued = [
            await in_thread(operations.start_turn, alice, session, f"{number}", multitask="enqueue")
            for number in range(3)
        ]
        answer = await call(alice, "POST", f"sessions/{session}/cancel/", {"wait": 20})
        assert (answer.status, answer.json()["run"]) == (200, first["id"])
        for run in (first, *queued):
            await ended(run["id"], "cancelled")
        assert len(model.calls) == 1

    @pytest.mark.slow
    @pytest.mark.timeout(max(120, 2 * TRIES))
    async def test_cancel_against_natural_end_agrees_everywhere(self, engine, model, alice, session):
        chance = timing()
        for number in range(TRIES):
            run = (await in_thread(operations.start_turn, alice, session, f"{number}"))["id"]
            await asyncio.sleep(chance.uniform(0, 0.05))
            cancelled = (await call(alice, "POST", f"runs/{run}/cancel/", {"wait": 20})).json()
            state = (await call(alice, "GET", f"runs/{run}/")).json()
            events = (await call(alice, "GET", f"runs/{run}/events/", accept="application/json")).json()
            terminal = [
                event["type"] for event in events["events"] if event["type"] in TERMINAL_EVENT.values()
            ]
            assert terminal == [f"run.{state['status']}"]
            assert (cancelled["outcome"], state["status"]) in (
                ("cancelled", "cancelled"),
                ("already_finished", "completed"),
            )

    async def test_without_a_worker_the_cancel_settles_all_the_same(self, engine, alice, session):
        run = await in_thread(a_run, alice, RunStatus.RUNNING, session)  # of a worker that is nobody
        answer = await call(alice, "POST", f"runs/{run}/cancel/", {"wait": 20})
        assert (answer.status, answer.json()["outcome"]) in ((200, "reconciled"), (200, "cancelled"))
        await ended(run, "cancelled")


@pytest.mark.django_db(transaction=True)
class TestDecisions:
    """Answer, resume, retry, dismiss, force-cancel."""

    async def test_a_question_is_answered_once(self, engine, model, alice, session):
        model.script.add(tool_call("ask", question="Now?"), say("As you wish."))
        run = (await in_thread(operations.start_turn, alice, session, "hello"))["id"]
        await ended(run, "waiting")
        log = (await call(alice, "GET", f"runs/{run}/events/", accept="application/json")).json()
        (question,) = log["events"][-1]["data"]["questions"]
        answers = {"answers": {question["id"]: "Yes"}}
        answered = await call(alice, "POST", f"runs/{run}/answer/", answers)
        assert (answered.status, answered.json()["id"]) == (200, run)
        again = await call(alice, "POST", f"runs/{run}/answer/", answers)
        assert (again.status, again.json()["error"]["code"]) == (409, "not_waiting")
        await ended(run, "completed")

    @pytest.mark.parametrize(
        "body", [{}, {"answers": []}, {"answers": "Yes"}, {"answers": {}}, {"answers": None}]
    )
    async def test_answers_are_an_object_by_question(self, engine, alice, session, body):
        run = await in_thread(a_run, alice, RunStatus.WAITING, session)
        answer = await call(alice, "POST", f"runs/{run}/answer/", body)
        assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid")

    async def test_an_answer_nested_without_end_is_invalid(self, engine, alice, session):
        run = await in_thread(a_run, alice, RunStatus.WAITING, session)
        deep: list = []
        for _ in range(200):
            deep = [deep]
        answer = await call(alice, "POST", f"runs/{run}/answer/", {"answers": {"q1": deep}})
        assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid")

    async def test_an_interrupted_run_is_dismissed(self, alice, session):
        run = await in_thread(a_run, alice, RunStatus.INTERRUPTED, session)
        answer = await call(alice, "POST", f"runs/{run}/dismiss/")
        assert (answer.status, answer.json()["resolution"]) == (200, "dismissed")
        again = await call(alice, "POST", f"runs/{run}/dismiss/")
        assert (again.status, again.json()["error"]["code"]) == (409, "not_interrupted")

    @pytest.mark.parametrize(("decision", "link"), [("resume", "resumes"), ("retry", "retries")])
    async def test_an_interrupted_run_goes_on_in_a_new_one(self, alice, session, decision, link):
        run = await in_thread(a_run, alice, RunStatus.INTERRUPTED, session)
        answer = await call(alice, "POST", f"runs/{run}/{decision}/")
        assert answer.status == 202
        assert answer.headers["location"] == f"/api/runs/{answer.json()['id']}/"
        assert answer.json()[link] == run

    async def test_a_turn_is_retried_with_other_words(self, engine, model, alice, session):
        run = (await in_thread(operations.start_turn, alice, session, "hello"))["id"]
        await ended(run, "completed")
        answer = await call(alice, "POST", f"runs/{run}/retry/", {"input": "good evening"})
        await ended(answer.json()["id"], "completed")
        history = (await call(alice, "GET", f"sessions/{session}/history/")).json()
        assert [m["text"] for m in history["messages"] if m["role"] == "user"] == ["good evening"]

    async def test_only_an_operator_with_a_reason_forces_a_cancel(self, alice, olivia, session):
        run = await in_thread(a_run, alice, RunStatus.RUNNING, session)
        for body in ({}, {"reason": ""}, {"reason": "  "}):
            answer = await call(olivia, "POST", f"runs/{run}/force-cancel/", body)
            assert (answer.status, answer.json()["error"]["code"]) == (400, "invalid")
        answer = await call(olivia, "POST", f"runs/{run}/force-cancel/", {"reason": "its worker is gone"})
        assert (answer.status, answer.json()["source"]) == (200, "operator")
        assert (await call(alice, "GET", f"runs/{run}/")).json()["status"] == "cancelled"

    async def test_what_is_unknown_is_not_found_before_it_is_checked_for_its_state(self, alice):
        for decision in ("resume", "retry", "dismiss", "cancel"):
            answer = await call(alice, "POST", f"runs/{uuid4()}/{decision}/")
            assert (answer.status, answer.json()["error"]["code"]) == (404, "not_found")
        assert (await call(alice, "GET", f"runs/{UNKNOWN}/")).status == 404

"""What Prometheus is told, and who else."""

import re

import pytest
from django.db import OperationalError

from runs import operations
from runs.foundation.database import in_thread
from runs.metrics import REGISTRY
from tests.chat.live import PATIENT, Answer, Http, bearer, eventually, socket
from tests.chat.openai.completions import complete
from tests.fakes import Failure, Hold, Round, ScriptedModel, plain_graph, text
from tests.runs.waiting import terminal


@pytest.fixture
def model(serve):
    scripted = ScriptedModel()
    serve(lambda: plain_graph(scripted))
    yield scripted
    scripted.script.open_all()


async def scrape(client: str = "127.0.0.1", **headers: str) -> Answer:
    http = Http("GET", "/metrics", None, headers)
    http.scope["client"] = [client, 1]
    answer = await http.begin()
    answer.body = (await http.receive_output(PATIENT))["body"]
    await http.wait(PATIENT)
    return answer


async def number(name: str, labels: str = "") -> float:
    found = re.search(rf"^{re.escape(name + labels)} (\S+)$", (await scrape()).body.decode(), re.MULTILINE)
    return float(found[1]) if found else 0.0


async def test_runs_are_counted_by_how_they_ended(engine, model, alice):
    ended = 'turnkeeper_runs_ended_total{error="%s",status="%s"}'
    names = [ended % pair for pair in (("", "completed"), ("provider", "failed"), ("", "cancelled"))]
    before = [await number(name) for name in names]
    tokens = await number("turnkeeper_first_token_seconds_count")
    cancels = 'turnkeeper_cancel_seconds_count{outcome="cancelled"}'
    settled = await number(cancels)
    batches = await number("turnkeeper_event_batch_events_sum")
    model.script.add(Round(text("one")), Round(Failure(500)), Round(text("two"), Hold("held")))
    await complete(alice)
    await complete(alice)
    session = (await in_thread(operations.create_session, alice))["id"]
    run = (await in_thread(operations.start_turn, alice, session, "three"))["id"]
    await model.script.gate("held").reached()
    await in_thread(operations.cancel_run, alice, run)
    await terminal(run)

    assert [await number(name) for name in names] == [count + 1 for count in before]
    assert await number("turnkeeper_first_token_seconds_count") >= tokens + 2
    assert await number(cancels) == settled + 1
    assert await number("turnkeeper_event_batch_events_sum") > batches
    assert await number("turnkeeper_event_commit_seconds_count") > 0


async def test_what_is_open_now_is_a_gauge(engine, model, alice):
    model.script.add(Round(text("one"), Hold("held")))
    session = (await in_thread(operations.create_session, alice))["id"]
    async with socket(alice, session):
        await in_thread(operations.start_turn, alice, session, "one")
        await in_thread(operations.start_turn, alice, session, "two", multitask="enqueue")
        await model.script.gate("held").reached()
        assert await number("turnkeeper_runs_active", '{status="running"}') == 1
        assert await number("turnkeeper_runs_active", '{status="queued"}') == 1
        assert await number("turnkeeper_executions") == 1
        assert await number("turnkeeper_sockets") == 1
        assert await number("turnkeeper_followers") == 1
        assert await number("turnkeeper_database_up") == 1
    await in_thread(operations.cancel_session, alice, session)
    await eventually(lambda: not engine.executions)
    assert await number("turnkeeper_sockets") == 0
    assert await number("turnkeeper_runs_active", '{status="queued"}') == 0


async def test_without_the_database_the_rest_is_told(engine, monkeypatch):
    from chat.monitoring import metrics

    class Down:
        def filter(self, **_):
            raise OperationalError

    class NoRuns:
        objects = Down()

    monkeypatch.setattr(metrics, "Run", NoRuns)
    assert await number("turnkeeper_database_up") == 0
    assert "turnkeeper_sockets 0.0" in (await scrape()).body.decode()
    assert "turnkeeper_runs_active" not in (await scrape()).body.decode()


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.0.1", "::1"])
async def test_on_this_machine_nobody_is_asked(engine, address):
    answer = await scrape(address)
    assert (answer.status, answer.headers["content-type"].split(";")[0]) == (200, "text/plain")


async def test_from_elsewhere_it_takes_a_token_of_staff(engine, alice, olivia):
    assert (await scrape("10.0.0.1")).status == 401
    assert (await scrape("10.0.0.1", authorization="Bearer nonsense")).status == 401
    assert (await scrape("", authorization="Basic YTpi")).status == 401
    assert (await scrape("10.0.0.1", **(await bearer(alice)))).status == 403
    assert (await scrape("10.0.0.1", **(await bearer(olivia)))).status == 200


async def test_an_aborted_transaction_counts_nothing(engine, alice):
    from django.db import transaction

    from runs import metrics
    from runs.models import Run

    def count() -> float:
        return REGISTRY.get_sample_value("turnkeeper_runs_ended_total", {"status": "x", "error": ""}) or 0

    def rolled_back() -> None:
        with transaction.atomic():
            metrics.run_ended(Run(status="x"))
            transaction.set_rollback(True)

    await in_thread(rolled_back)
    assert count() == 0

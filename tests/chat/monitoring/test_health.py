"""Whether the process lives, and whether it can work: asked by probes that know nothing of logins."""

import pytest
from channels.layers import get_channel_layer

from chat.monitoring import health
from runs.foundation.database import in_thread
from runs.models import Worker
from tests.chat.live import PATIENT, Answer, Http


async def get(path: str, method: str = "GET") -> Answer:
    http = Http(method, path, None, {})
    answer = await http.begin()
    answer.body = (await http.receive_output(PATIENT))["body"]
    await http.wait(PATIENT)
    return answer


async def parts() -> tuple[int, dict[str, str]]:
    answer = await get("/readyz")
    return answer.status, answer.json()["parts"]


async def test_liveness_asks_nobody():
    # No database is allowed in this test, and no engine runs.
    answer = await get("/healthz")
    assert (answer.status, answer.json()) == (200, {"status": "ok"})
    assert "no-cache" in answer.headers["cache-control"]


async def test_a_process_that_works_is_ready(engine):
    answer = await get("/readyz")
    assert answer.status == 200
    ok = {"server": "ok", "database": "ok", "channel_layer": "ok", "worker": "ok"}
    assert answer.json() == {"status": "ok", "parts": ok}


async def test_a_process_that_shuts_down_is_not_ready_any_more(engine):
    engine.leaving = True
    status, found = await parts()
    assert (status, found["server"], found["database"]) == (503, "leaving", "ok")


@pytest.mark.django_db(transaction=True)
async def test_a_process_whose_engine_has_not_started_is_not_ready():
    status, found = await parts()
    assert (status, found["server"], found["worker"]) == (503, "not started", "no heartbeat")


async def test_a_worker_that_does_not_beat_is_named(engine):
    await in_thread(Worker.objects.update, heartbeat_at="2020-01-01T00:00:00Z")
    status, found = await parts()
    assert (status, found["worker"], found["server"]) == (503, "no heartbeat", "ok")


async def test_a_channel_layer_that_is_down_is_named(engine, monkeypatch):
    async def refuse(self, group, message):
        raise ConnectionError("a password may stand here")

    monkeypatch.setattr(type(get_channel_layer()), "group_send", refuse, raising=False)
    status, found = await parts()
    assert (status, found["channel_layer"], found["database"]) == (503, "ConnectionError", "ok")


async def test_a_part_that_does_not_answer_is_not_waited_for(engine, monkeypatch):
    async def swallow(self, group, message):
        pass

    monkeypatch.setattr(type(get_channel_layer()), "group_send", swallow, raising=False)
    monkeypatch.setattr(health, "TIMEOUT", 0.05)
    status, found = await parts()
    assert (status, found["channel_layer"]) == (503, "no answer within 0.05 s")


async def test_a_database_that_is_down_is_named(engine, monkeypatch):
    from django.db import OperationalError

    def down():
        raise OperationalError("the address of the database")

    monkeypatch.setattr(health, "_select", down)
    status, found = await parts()
    assert (status, found["database"]) == (503, "OperationalError")


async def test_nothing_is_left_in_the_channel_layer(engine):
    layer = get_channel_layer()
    before = set(layer.groups), set(layer.channels)
    for _ in range(3):
        await get("/readyz")
    assert (set(layer.groups), set(layer.channels)) == before


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_only_read(path):
    assert (await get(path, "POST")).status in (403, 405)

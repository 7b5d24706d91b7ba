"""The log as JSON: one object a line, about something that can be looked up."""

import json
import logging
import os
import subprocess
import sys

import pytest

from chat.monitoring.json_logs import JsonFormatter
from chat.monitoring.text_logs import RECORD_LIMIT
from runs import operations
from runs.foundation import log_context
from runs.foundation.database import in_thread
from tests import ROOT
from tests.fakes import Failure, Round, ScriptedModel, plain_graph
from tests.fakes.errors import HOSTILE, SECRET_TEXT, SECRETS
from tests.runs.waiting import terminal


def line(message: str, *args: object, **fields: object) -> dict:
    record = logging.LogRecord("chat", logging.INFO, __file__, 1, message, args, None)
    record.__dict__.update(fields)
    text = JsonFormatter().format(record)
    assert "\n" not in text
    return json.loads(text)


def test_a_line_has_what_machines_look_for():
    found = line("Ünïcode %s\nand more", "text", extra_field=7, request=object())
    assert found.pop("at").startswith("20")
    assert found == {
        "level": "INFO", "logger": "chat", "message": "Ünïcode text\nand more", "extra_field": 7
    }  # fmt: skip


def test_an_exception_stays_on_its_line():
    try:
        1 / 0  # noqa: B018
    except ZeroDivisionError:
        assert "ZeroDivisionError" in line("broken", exc_info=sys.exc_info())["exc_info"]


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_what_an_exception_says_is_clean_bounded_and_masked(make):
    error = make()
    try:
        raise error
    except Exception:
        found = line("It broke: %.200s", SECRET_TEXT, exc_info=sys.exc_info(), extra_field=SECRET_TEXT)
    assert type(error).__name__ in found["exc_info"]
    for text in found.values():
        assert len(text) <= RECORD_LIMIT
        assert not any(word in text for word in (*SECRETS, "\0", "\ud800"))


async def test_lines_of_a_run_name_it_its_session_and_its_worker(engine, alice, serve):
    serve(lambda: plain_graph(ScriptedModel(Round(Failure(500)))))
    written = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.append(json.loads(JsonFormatter().format(record)))

    collector = Collector()
    logging.getLogger("runs.worker").addHandler(collector)
    try:
        session = (await in_thread(operations.create_session, alice))["id"]
        run_id = (await in_thread(operations.start_turn, alice, session, "hello"))["id"]
        await terminal(run_id)
    finally:
        logging.getLogger("runs.worker").removeHandler(collector)
    failed = next(found for found in written if "failed" in found["message"])
    assert (failed["run"], failed["session"], failed["worker"]) == (run_id, session, str(engine.id))
    assert log_context.ids().get("run") is None  # and those of nobody else


def test_log_format_json_is_what_a_process_then_writes():
    script = "import logging, django; django.setup(); logging.getLogger('elsewhere').warning('told')"
    ended = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env={**os.environ, "LOG_FORMAT": "json"},
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(ended.stderr)
    assert (found["level"], found["logger"], found["message"]) == ("WARNING", "elsewhere", "told")

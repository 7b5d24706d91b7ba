"""The OpenAPI description is true: generated calls are answered as it says, and it leaves nothing out."""

import copy
import re
from typing import Any
from uuid import UUID

import pytest
import schemathesis
from drf_spectacular.checks import schema_check
from drf_spectacular.validation import validate_schema
from hypothesis import HealthCheck, settings
from jsonschema import Draft202012Validator
from langchain_core.tools import tool
from langgraph.config import get_stream_writer
from langgraph.prebuilt import ToolRuntime
from schemathesis import GenerationMode
from schemathesis.core.parameters import ParameterLocation
from schemathesis.specs.openapi import checks as conformance

from chat.access.throttles import Throttled
from chat.api.errors import CODES
from chat.api.schema import components, document
from chat.api.urls import urlpatterns
from runs import errors
from runs.errors import EngineError
from runs.foundation.database import in_thread
from runs.lifecycle import endings
from runs.models import Run, RunEvent
from runs.states import EventType, InterruptReason, RunStatus
from tests.chat.api.programs import Program, a_run, open_session
from tests.chat.live import application, call, eventually
from tests.fakes import Failure, Hold, Marks, Round, ScriptedModel, plain_graph, say, spelled, text, tools
from tests.fakes import call as tool_call

JSON = {"Accept": "application/json"}


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema, with answers that may hold nothing which it does not name."""
    schema = copy.deepcopy(schema)
    for name in components():
        _close(schema["components"]["schemas"][name])
    return schema


def _close(shape: Any) -> None:
    if isinstance(shape, dict):
        if "properties" in shape:
            shape.setdefault("additionalProperties", False)
        for part in shape.values():
            _close(part)
    elif isinstance(shape, list):
        for part in shape:
            _close(part)


CLOSED = closed(document())
api = schemathesis.openapi.from_dict(CLOSED)
api.config.generation.update(
    allow_extra_parameters=False,  # what nobody knows is ignored, by design
    with_security_parameters=False,  # who may call what is the table of test_access
)

# The status that the run of a call has to be in for the call to do something; other runs are completed.
STATUS = {
    "answer_run": RunStatus.WAITING,
    "cancel_run": RunStatus.QUEUED,
    "dismiss_run": RunStatus.INTERRUPTED,
    "force_cancel_run": RunStatus.RUNNING,
    "reconcile_run": RunStatus.INTERRUPTED,
    "resume_run": RunStatus.INTERRUPTED,
    "retry_run": RunStatus.FAILED,
}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    conformance.status_code_conformance,
    conformance.content_type_conformance,
    conformance.response_headers_conformance,
    conformance.response_schema_conformance,
    conformance.unsupported_method,
]


@api.parametrize()
@settings(
    max_examples=8,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_generated_calls_are_answered_as_described(case, olivia, transactional_db):
    """Each about things there are not, then about things there are."""
    headers = {**Program(olivia).headers, **JSON}
    checks = [*CHECKS, conformance.negative_data_rejection]
    answer = case.call(headers=headers, app=application(), base_url="http://testserver")
    case.validate_response(answer, checks=checks)
    if not case.path_parameters:
        return
    operation = case.operation.definition.raw["operationId"]
    session = open_session(olivia)
    run = a_run(olivia, STATUS.get(operation, RunStatus.COMPLETED), session)
    only_the_path_was_wrong = all(
        part.mode is GenerationMode.POSITIVE
        for location, part in case.meta.components.items()
        if location is not ParameterLocation.PATH
    )
    case.path_parameters = {"session_id": session, "run_id": run}
    answer = case.call(headers=headers, app=application(), base_url="http://testserver")
    case.validate_response(answer, checks=CHECKS if only_the_path_was_wrong else checks)


def test_the_description_is_served_and_valid(as_charlie):
    response = as_charlie.get("schema/", Accept="text/html")
    assert response["Content-Type"] == "application/vnd.oai.openapi+json"
    served = response.json()
    assert served == document()
    validate_schema(served)
    assert served["openapi"].startswith("3.1")


def test_it_is_made_without_a_warning():
    assert schema_check(None) == []


def test_every_address_and_method_is_described_and_no_other():
    addresses = {
        "/api/" + re.sub(r"<str:(\w+)>", r"{\1}", str(pattern.pattern)): pattern.callback.view_class
        for pattern in urlpatterns
        if str(pattern.pattern) not in ("", "schema/", "docs/")
    }
    expected = {
        (path, method)
        for path, view in addresses.items()
        for method in ("get", "post", "put", "patch", "delete")
        if hasattr(view, method)
    }
    assert {(path, method) for path, item in document()["paths"].items() for method in item} == expected


def test_operations_have_names_that_stay():
    """Clients are generated from these; to change one breaks them."""
    names = [operation["operationId"] for item in document()["paths"].values() for operation in item.values()]
    assert sorted(names) == [
        "answer_run", "cancel_run", "cancel_session", "create_session", "delete_session", "dismiss_run",
        "force_cancel_run", "get_events", "get_history", "get_run", "get_session", "list_agents", "list_runs",
        "list_sessions", "list_workers", "reconcile_run", "rename_session", "resume_run", "retry_run",
        "start_run",
    ]  # fmt: skip


def test_each_operation_says_what_it_does_and_how_one_logs_in():
    for path, item in document()["paths"].items():
        for method, operation in item.items():
            assert operation["summary"], (method, path)
            assert operation["security"] == [{"bearer": []}, {"cookie": []}], (method, path)
            assert "401" in operation["responses"], (method, path)
    assert document()["components"]["securitySchemes"]["bearer"]["scheme"] == "bearer"


def test_every_error_code_of_the_engine_is_described():
    raised = {
        error.code
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, EngineError)
    }
    assert (raised | {Throttled.code}) - {EngineError.code} <= set(CODES)


def test_every_event_type_is_described_and_told_by_its_type():
    schemas = document()["components"]["schemas"]
    mapping = schemas["Event"]["discriminator"]["mapping"]
    assert set(mapping) == set(EventType.values)
    for type, reference in mapping.items():
        shape = schemas[reference.rsplit("/", 1)[1]]
        assert shape["properties"]["type"]["const"] == type


@tool
async def report(x: str, runtime: ToolRuntime) -> str:
    """Tell how far it has come."""
    get_stream_writer()({"at": x})
    runtime.emit_output_delta(x)
    return x


def check(component: str, found: Any) -> None:
    """Hold an answer against the description, which may say neither more nor less."""
    validator = Draft202012Validator(
        {"$ref": f"#/components/schemas/{component}", "components": CLOSED["components"]}
    )
    validator.validate(found)


class TestWhatRunsSay:
    """Logs, histories and sessions of turns that end in every way there is."""

    pytestmark = pytest.mark.django_db(transaction=True)

    @pytest.fixture
    def model(self, serve, tmp_path):
        scripted = ScriptedModel()
        serve(lambda: plain_graph(scripted, [*tools(Marks(tmp_path / "marks")), report]))
        yield scripted
        scripted.script.open_all()

    @pytest.fixture
    def turn(self, engine, model, alice, session):
        async def run(*rounds: Any, until: str, **fields: Any) -> str:
            """Start a turn with this script and come back when it has this status."""
            model.script.add(*rounds)
            body = {"input": "Please", "stream_modes": ["updates", "custom"], **fields}
            started = await call(alice, "POST", f"sessions/{session}/runs/", body)
            check("Run", started.json())
            return await self.reaches(started.json()["id"], until)

        return run

    @staticmethod
    async def reaches(run: str, status: str) -> str:
        await eventually(lambda: in_thread(Run.objects.filter(id=run, status=status).exists))
        return run

    async def test_all_of_it_is_as_described(self, engine, model, turn, alice, session):
        await turn(tool_call("report", x="half"), say("Done."), until="completed")
        await turn(tool_call("boom"), say("It failed."), until="completed")
        await turn(Round(Failure(400)), until="failed")
        asked = await turn(tool_call("ask", question="Really?"), say("Good."), until="waiting")
        check("Session", (await call(alice, "GET", f"sessions/{session}/")).json())
        page = (await call(alice, "GET", f"runs/{asked}/events/", accept="application/json")).json()
        questions = next(event for event in page["events"] if event["type"] == "run.waiting")["data"][
            "questions"
        ]
        answers = {question["id"]: "Yes" for question in questions}
        check("Run", (await call(alice, "POST", f"runs/{asked}/answer/", {"answers": answers})).json())
        await self.reaches(asked, "completed")
        stopped = await turn(Round(text("Half of "), spelled("slow_async", {"seconds": 60})), until="running")
        await eventually(lambda: in_thread(RunEvent.objects.filter(run=stopped, type="tool.started").exists))
        check("History", (await call(alice, "GET", f"sessions/{session}/history/?render=html")).json())
        cancelled = await call(alice, "POST", f"runs/{stopped}/cancel/", {"wait": 20, "reason": "enough"})
        check("Cancellation", cancelled.json())
        lost = await turn(Round(text("Before "), Hold("middle")), until="running")
        await model.script.gate("middle").reached()
        worker = (await Run.objects.aget(id=lost)).worker_id
        await in_thread(endings.interrupt, UUID(lost), worker, InterruptReason.WORKER_LOST)

        seen = set()
        async for run in Run.objects.filter(session=session):
            check("Run", (await call(alice, "GET", f"runs/{run.id}/")).json())
            page = (await call(alice, "GET", f"runs/{run.id}/events/", accept="application/json")).json()
            check("EventPage", page)
            seen |= {event["type"] for event in page["events"]}
        check("History", (await call(alice, "GET", f"sessions/{session}/history/?render=html")).json())
        check("Session", (await call(alice, "GET", f"sessions/{session}/")).json())
        check("SessionPage", (await call(alice, "GET", "sessions/")).json())
        assert seen == set(EventType.values) - {"message.changed"}  # this agent keeps all that it says
        changed = {"message": "m", "audience": "work", "text": "What it became."}
        check(
            "Event",
            {
                "run": asked,
                "seq": 3,
                "type": "message.changed",
                "data": changed,
                "at": "2026-01-01T00:00:00Z",
            },
        )

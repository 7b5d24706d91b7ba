"""What the tests of the API share: programs that call as somebody, and sessions and runs in given states."""

import json
from typing import Any

from django.db import transaction
from django.test import Client
from django.utils import timezone

from chat.access import tokens
from runs import operations
from runs.models import Run
from runs.states import TERMINAL, ErrorCode, RunStatus

UNKNOWN = "5c5b2f6e-7d0e-4a53-9d0b-000000000000"  # the same in every process that collects the tests


class Program:
    """A client with a bearer token, or with none."""

    def __init__(self, user: Any = None, **headers: str) -> None:
        self.user = user
        self.client = Client(raise_request_exception=False)
        self.headers = {
            **({"Authorization": f"Bearer {tokens.create_token(user)}"} if user else {}),
            **headers,
        }

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        content: Any = {} if body is None else {"data": json.dumps(body), "content_type": "application/json"}
        return self.client.generic(method, f"/api/{path}", **content, headers={**self.headers, **headers})

    def get(self, path: str, **headers: str) -> Any:
        return self("GET", path, **headers)

    def post(self, path: str, body: Any = None, **headers: str) -> Any:
        return self("POST", path, {} if body is None else body, **headers)


def error_of(response: Any) -> tuple[int, str]:
    """Status and code of an error, which must have the one form of errors."""
    assert response["Content-Type"].startswith("application/json"), response.content
    body = response.json()
    assert list(body) == ["error"], body
    assert sorted(body["error"]) == ["code", "message"]
    assert body["error"]["message"]
    return response.status_code, body["error"]["code"]


def message_of(response: Any) -> str:
    return str(response.json()["error"]["message"])


def open_session(user: Any, **fields: Any) -> str:
    return str(operations.create_session(user, **fields)["id"])


@transaction.atomic  # so that an engine that runs beside the test sees it in its final status only
def a_run(user: Any, status: str = RunStatus.QUEUED, session: str | None = None, text: str = "hello") -> str:
    """A run in the given status, as a worker that is not there now would have left it."""
    run = operations.start_turn(user, session or open_session(user), text, multitask="enqueue")
    found = Run.objects.get(id=run["id"])
    if status == RunStatus.QUEUED:
        return str(found.id)
    now = timezone.now()
    found.status, found.started_at = status, now
    found.finished_at = now if status in TERMINAL else None
    if status == RunStatus.WAITING:
        found.questions = [{"id": "q1", "value": "Which one?"}]
    if status == RunStatus.FAILED:
        found.error_code, found.error_message = ErrorCode.INTERNAL, "It broke."
    found.session.last_position += 1
    found.session.save()
    found.position = found.session.last_position
    found.save()
    return str(found.id)

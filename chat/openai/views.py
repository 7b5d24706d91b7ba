"""The views of OpenAI's protocol. Its clients need our base URL and an API token."""

from functools import partial
from http import HTTPStatus
from typing import Any, cast

from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.views.decorators.csrf import csrf_exempt
from rest_framework.request import Request
from rest_framework.response import Response

from chat.access import run_connections, throttles
from chat.access.authentication import BearerAuthentication
from chat.access.logins import login_of
from chat.access.run_connections import RunConnection
from chat.api import inputs, streams
from chat.api.async_view import AsyncView, actor_of
from chat.openai import requests
from chat.openai.completions import Completion
from chat.openai.errors import ModelNotFound, body, handle, run_headers
from chat.openai.requests import CompletionRequest
from runs import operations
from runs.errors import AgentMismatch
from runs.foundation.database import in_thread
from runs.operations import Actor, Data, Started
from runs.wire import contract


@csrf_exempt
async def nothing_here(request: HttpRequest) -> JsonResponse:
    """The 404 for unknown addresses under /v1/, with or without a login."""
    status = HTTPStatus.NOT_FOUND
    return JsonResponse(body(status, "not_found", "There is no such address in this API."), status=status)


class View(AsyncView):
    """The base: bearer tokens only, and OpenAI's form of errors."""

    authentication_classes = (BearerAuthentication,)
    http_method_names = ["get", "post"]

    def get_exception_handler(self) -> Any:
        return handle


class Models(View):
    """The configured agents."""

    async def get(self, request: Request) -> Response:
        found = await in_thread(operations.agents)
        return Response({"object": "list", "data": [_model(agent) for agent in found]})


class Model(View):
    """One of them."""

    async def get(self, request: Request, name: str) -> Response:
        return Response(_model(await in_thread(_agent, name)))


class ChatCompletions(View):
    """A turn: in the session of X-Session-Id, or in a new one that begins with the messages before it."""

    async def post(self, request: Request) -> HttpResponseBase:
        session_id = request.headers.get("X-Session-Id")
        asked = await in_thread(
            requests.read, cast(Data, request.data), session_exists=session_id is not None
        )
        key = request.headers.get("Idempotency-Key")
        if key is not None:
            key = inputs.IdempotencyKey.read({"key": key})["key"]
        start = partial(_start, actor_of(request), asked, session_id, key)
        connection, run = await run_connections.start(RunConnection, login_of(request), start)
        completion = Completion(connection, run, asked.model)
        response: HttpResponseBase
        if asked.stream:
            response = streams.response(completion.chunks(include_usage=asked.include_usage))
        else:
            response = Response(await completion.whole())
        for name, value in run_headers(run).items():
            response.headers[name] = value
        return response


def _start(user: Actor, asked: CompletionRequest, session_id: str | None, key: str | None) -> Started:
    """Start the turn; the Run."""
    _agent(asked.model)
    if session_id is None:
        return throttles.start_turn(
            operations.start_session,
            user,
            asked.text,
            agent=asked.model,
            seed=asked.earlier,
            key=key,
            on_disconnect=asked.on_disconnect,
        )
    agent = operations.session_snapshot(user, session_id)["agent"]
    if agent != asked.model:
        raise AgentMismatch(f'This session belongs to the agent "{agent}".')
    return throttles.start_turn(
        operations.start_turn, user, session_id, asked.text, key=key, on_disconnect=asked.on_disconnect
    )


def _agent(name: str) -> contract.Agent:
    found = next((agent for agent in operations.agents() if agent["name"] == name), None)
    if found is None:
        raise ModelNotFound("There is no such agent. GET /v1/models lists those there are.", "model")
    return found


def _model(agent: contract.Agent) -> Data:
    """An agent as a model; when it was created is nothing an agent has."""
    return {
        "id": agent["name"],
        "object": "model",
        "created": 0,
        "owned_by": "turnkeeper",
        "title": agent["title"],
        "description": agent["description"],
    }

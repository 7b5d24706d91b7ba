"""The views of the REST API. Each handler reads its input, calls one operation and returns its result."""

from functools import partial
from http import HTTPStatus
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_safe
from drf_spectacular.utils import extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from chat.access import throttles
from chat.access.logins import login_of
from chat.access.open_connections import TooMany
from chat.api import errors, inputs, streams
from chat.api.async_view import EVENT_STREAM, JSON, AsyncView, accepts, actor_of
from chat.api.paging import Pages, RunPages, SessionPages, WorkerPages
from chat.api.schema import STARTING, document, header, operation
from chat.rendering import add_html
from runs import operations
from runs.errors import (
    CursorGone,
    Forbidden,
    IdempotencyConflict,
    Invalid,
    NotInterrupted,
    NotWaiting,
    RunActive,
    TooLarge,
    Unavailable,
)
from runs.foundation.database import in_thread
from runs.foundation.limits import IDEMPOTENCY_KEY_LIMIT
from runs.operations import Started
from runs.states import Audience, OnDisconnect
from runs.wire import contract, representations


@csrf_exempt
async def nothing_here(request: HttpRequest) -> JsonResponse:
    """The 404 for unknown addresses under /api/, with or without a login."""
    return JsonResponse(
        errors.body("not_found", "There is no such address in this API."), status=HTTPStatus.NOT_FOUND
    )


class Agents(AsyncView):
    """The configured agents."""

    @operation("list_agents", {200: "AgentPage"})
    async def get(self, request: Request) -> Response:
        """List the configured agents, the default one first.

        They all come at once.
        """
        found = await in_thread(operations.agents)
        return Response({"results": found, "next": None, "previous": None})


class Sessions(AsyncView):
    """One's own sessions."""

    @operation("list_sessions", {200: "SessionPage"}, query=inputs.SessionFilter)
    async def get(self, request: Request) -> Response:
        """List your sessions, most recently changed first.

        `search` looks in titles and in what you wrote.
        """
        chosen = inputs.SessionFilter.read(request.query_params.dict())
        found = operations.sessions(
            actor_of(request),
            search=chosen.get("search", ""),
            status=chosen.get("status", ""),
            origin=chosen.get("origin") or None,
        )
        return await in_thread(_page, SessionPages(), found, representations.sessions, request)

    @operation("create_session", {201: "Session"}, body=inputs.NewSession)
    async def post(self, request: Request) -> Response:
        """Open a session.

        Without `agent` it gets the default one; without `title` it is named after its first turn.
        """
        session = await in_thread(
            operations.create_session, actor_of(request), **inputs.NewSession.read(request.data)
        )
        return Response(
            session, HTTPStatus.CREATED, headers={"Location": reverse("api:session", args=[session["id"]])}
        )


class Session(AsyncView):
    """One session."""

    @operation("get_session", {200: "Session"})
    async def get(self, request: Request, session_id: str) -> Response:
        """Read a session."""
        return Response(await in_thread(operations.session_snapshot, actor_of(request), session_id))

    @operation("rename_session", {200: "Session"}, body=inputs.Rename)
    async def patch(self, request: Request, session_id: str) -> Response:
        """Rename a session.

        A title that a user gave is never overwritten by a generated one.
        """
        title = inputs.Rename.read(request.data)["title"]
        return Response(await in_thread(operations.rename_session, actor_of(request), session_id, title))

    @operation("delete_session", {204: ""})
    async def delete(self, request: Request, session_id: str) -> Response:
        """Delete a session and all that belongs to it.

        What is active is force-cancelled first.
        """
        await operations.delete_session(actor_of(request), session_id)
        return Response(status=HTTPStatus.NO_CONTENT)


class History(AsyncView):
    """A session's messages."""

    @operation("get_history", {200: "History"}, query=inputs.HistoryFilter)
    async def get(self, request: Request, session_id: str) -> Response:
        """Read a session's messages, oldest first.

        All of them, or `limit` of them from the end, or from right before the message `before`. With
        `audience=all` also what models said on the way, such as the words of an agent inside a tool. With
        `render=html` each has its text as sanitised HTML, too; of a long history the older ones are shown as
        they were written. Follow on from the `last_seq` of `run`.
        """
        chosen = inputs.HistoryFilter.read(request.query_params.dict())
        found = await operations.history(
            actor_of(request),
            session_id,
            limit=chosen.get("limit"),
            before=chosen.get("before"),
            audience=None if chosen["audience"] == "all" else Audience.ANSWER,
        )
        if "render" in chosen:
            await add_html(found["messages"])
        return Response(found)


class Runs(AsyncView):
    """A session's runs."""

    @operation("list_runs", {200: "RunPage"}, query=inputs.Page)
    async def get(self, request: Request, session_id: str) -> Response:
        """List a session's runs, newest first."""
        return await in_thread(_runs_page, request, session_id)

    @operation(
        "start_run",
        {202: "Run"},
        body=inputs.NewTurn,
        streams=True,
        headers=[
            header(
                "Idempotency-Key",
                "The same key with the same body gives the same run, in this session and for as long as "
                "the run is kept; with another body it is refused.",
                {"type": "string", "minLength": 1, "maxLength": IDEMPOTENCY_KEY_LIMIT},
            )
        ],
        raises=(RunActive, IdempotencyConflict, TooLarge, *STARTING, TooMany),
    )
    async def post(self, request: Request, session_id: str) -> HttpResponseBase:
        """Start a turn.

        Answers with the Run, or with its event stream when `Accept` names `text/event-stream`. What
        `multitask` does while a run is active: `reject` refuses (the default), `enqueue` waits in line,
        `interrupt` cancels it. With `on_disconnect` set to `cancel`, which needs the stream, the turn is
        cancelled when this connection goes away.
        """
        turn = inputs.NewTurn.read(request.data)
        streamed = accepts(request, EVENT_STREAM)
        if turn.get("on_disconnect") == OnDisconnect.CANCEL and not streamed:
            raise Invalid(
                'With on_disconnect "cancel" the answer must be streamed; send Accept: text/event-stream.'
            )
        text = turn.pop("input")
        key = _idempotency_key(request)
        start = partial(
            throttles.start_turn, operations.start_turn, actor_of(request), session_id, text, key=key, **turn
        )
        if streamed:
            return await streams.started(login_of(request), start)
        return _accepted(await in_thread(start))


class Run(AsyncView):
    """One run."""

    @operation("get_run", {200: "Run"})
    async def get(self, request: Request, run_id: str) -> Response:
        """Read a run."""
        return Response(await in_thread(operations.get_run, actor_of(request), run_id))


class Events(AsyncView):
    """A run's log."""

    @operation(
        "get_events",
        {200: "EventPage", 204: ""},
        query=inputs.EventsFilter,
        streams=True,
        headers=[
            header(
                "Last-Event-ID",
                "Resumes behind this event; comes before `after`.",
                {"type": "integer", "minimum": 0, "maximum": inputs.MAX_SEQ},
            )
        ],
        raises=(CursorGone, TooMany, Unavailable),
    )
    async def get(self, request: Request, run_id: str) -> HttpResponseBase:
        """Read a run's log: a page of it, or a stream that goes on live.

        Behind `after`: with `Accept: application/json` a page of at most `limit` events, else a stream. At or
        past the terminal event the stream is a 204, which tells an EventSource not to come back.
        """
        chosen = _wanted_part(request)
        if accepts(request, JSON) and not accepts(request, EVENT_STREAM):
            return Response(await in_thread(operations.events, actor_of(request), run_id, **chosen))
        return await streams.resumed(login_of(request), run_id, chosen.get("after", 0))

    async def head(self, request: Request, run_id: str) -> HttpResponseBase:
        """The status and headers of a GET. No event is read."""
        if accepts(request, JSON) and not accepts(request, EVENT_STREAM):
            return await self.get(request, run_id)
        after = _wanted_part(request).get("after", 0)
        page = await in_thread(operations.events, actor_of(request), run_id, after=after, limit=1)
        if page["done"] and not page["events"]:
            return HttpResponse(status=HTTPStatus.NO_CONTENT)
        return HttpResponse(content_type=EVENT_STREAM)


class CancelSession(AsyncView):
    """Cancel all of a session."""

    @operation(
        "cancel_session",
        {200: "Cancellation", 202: "Cancellation"},
        body=inputs.Cancel,
        raises=[Unavailable],
    )
    async def post(self, request: Request, session_id: str) -> Response:
        """Request that a session's active run and all of its queued ones be cancelled.

        202 while the cancel has not settled, 200 when it has; `wait` for that so many seconds. Once it is
        accepted the runs can become nothing but cancelled. It does not undo what tools have done.
        """
        return await _cancel(operations.cancel_session, request, session_id)


class CancelRun(AsyncView):
    """Cancel one run."""

    @operation(
        "cancel_run", {200: "Cancellation", 202: "Cancellation"}, body=inputs.Cancel, raises=[Unavailable]
    )
    async def post(self, request: Request, run_id: str) -> Response:
        """Request that one run be cancelled.

        202 while the cancel has not settled, 200 when it has; `wait` for that so many seconds.
        """
        return await _cancel(operations.cancel_run, request, run_id)


class Answer(AsyncView):
    """The answers a waiting run needs."""

    @operation("answer_run", {200: "Run"}, body=inputs.Answers, raises=(NotWaiting, TooLarge))
    async def post(self, request: Request, run_id: str) -> Response:
        """Answer all questions of a waiting run, at once."""
        answers = inputs.Answers.read(request.data)["answers"]
        return Response(await in_thread(operations.answer, actor_of(request), run_id, answers))


class Resume(AsyncView):
    """Going on with an interrupted run."""

    @operation("resume_run", {202: "Run"}, raises=(NotInterrupted, *STARTING))
    async def post(self, request: Request, run_id: str) -> Response:
        """Go on with an interrupted run, from its checkpoint, in a new run.

        The new run names the old one in `resumes`.
        """
        return _accepted(await in_thread(throttles.start_turn, operations.resume, actor_of(request), run_id))


class Retry(AsyncView):
    """Running a turn again."""

    @operation("retry_run", {202: "Run"}, body=inputs.Retry, raises=(NotInterrupted, TooLarge, *STARTING))
    async def post(self, request: Request, run_id: str) -> Response:
        """Run the session's latest turn again, perhaps with other words.

        The history goes back to before its message. The new run names the old one in `retries`.
        """
        text = inputs.Retry.read(request.data).get("input")
        return _accepted(
            await in_thread(throttles.start_turn, operations.retry, actor_of(request), run_id, text)
        )


class Dismiss(AsyncView):
    """Closing an interrupted run."""

    @operation("dismiss_run", {200: "Run"}, raises=[NotInterrupted])
    async def post(self, request: Request, run_id: str) -> Response:
        """Close an interrupted run: nobody will go on from it."""
        return Response(await in_thread(operations.dismiss, actor_of(request), run_id))


class ForceCancel(AsyncView):
    """Ending a run without its worker."""

    @operation(
        "force_cancel_run", {200: "Cancellation"}, body=inputs.Reason, raises=[Forbidden], tag="operators"
    )
    async def post(self, request: Request, run_id: str) -> Response:
        """End a run durably without its worker.

        Needs the permission `runs.force_cancel_run`. Whatever of the run still works is fenced off.
        """
        reason = inputs.Reason.read(request.data)["reason"]
        return Response(await in_thread(operations.force_cancel, actor_of(request), run_id, reason))


class Reconcile(AsyncView):
    """Bringing a run into order."""

    @operation(
        "reconcile_run", {200: "Reconciliation"}, body=inputs.Reason, raises=[Forbidden], tag="operators"
    )
    async def post(self, request: Request, run_id: str) -> Response:
        """Bring a stuck or interrupted run into order, and tell what was done.

        Needs the permission `runs.reconcile_run`. The run of a dead worker is ended, an overdue cancel is
        settled, an interrupted run is dismissed; the run of a living worker is left alone.
        """
        reason = inputs.Reason.read(request.data)["reason"]
        return Response(await operations.reconcile(actor_of(request), run_id, reason))


class Workers(AsyncView):
    """The processes that execute runs."""

    @operation("list_workers", {200: "WorkerPage"}, query=inputs.Page, raises=[Forbidden], tag="operators")
    async def get(self, request: Request) -> Response:
        """List the processes that execute runs, longest running first.

        Needs the permission `runs.view_worker`.
        """
        inputs.Page.read(request.query_params.dict())
        found = await in_thread(operations.workers, actor_of(request))
        return await in_thread(_page, WorkerPages(), found, representations.workers, request)


class OpenApiRenderer(JSONRenderer):
    media_type = "application/vnd.oai.openapi+json"


class Schema(AsyncView):
    """The OpenAPI schema of this API. It is public, since it tells of no data."""

    authentication_classes = ()
    permission_classes = ()
    renderer_classes = (OpenApiRenderer,)

    @extend_schema(exclude=True)
    async def get(self, request: Request) -> Response:
        return Response(await in_thread(document))


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    """A page that shows the schema and can call the API.

    Its script is a file, since our content security policy forbids scripts in pages.
    """
    return render(request, "api/docs.html")


async def _cancel(operation: Any, request: Request, target: str) -> Response:
    """Request the cancel and wait as long as the client asks for; 202 if it has not settled then."""
    asked = inputs.Cancel.read(request.data)
    cancellation = await in_thread(operation, actor_of(request), target, reason=asked.get("reason", ""))
    wait = asked.get("wait", 0)
    if wait and cancellation["outcome"] is None:
        cancellation = await operations.wait_for_cancellation(cancellation, wait)
    settled = cancellation["outcome"] is not None
    return Response(cancellation, HTTPStatus.OK if settled else HTTPStatus.ACCEPTED)


def _accepted(run: Started | contract.Run) -> Response:
    return Response(run, HTTPStatus.ACCEPTED, headers={"Location": reverse("api:run", args=[run["id"]])})


def _wanted_part(request: Request) -> inputs.Values:
    """The part of a log that is asked for: where it begins and how many events."""
    chosen = inputs.EventsFilter.read(request.query_params.dict())
    if (last := request.headers.get("Last-Event-ID")) is not None:
        chosen |= inputs.EventsFilter.read({"after": last})
    return chosen


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    try:
        return str(inputs.IdempotencyKey.read({"key": key})["key"])
    except ValidationError as error:
        raise ValidationError({"Idempotency-Key": error.detail["key"]}) from None  # type: ignore[call-overload]


def _runs_page(request: Request, session_id: str) -> Response:
    # runs_of reads the database at once, to find out whether the session is the user's.
    inputs.Page.read(request.query_params.dict())
    return _page(RunPages(), operations.runs_of(actor_of(request), session_id), representations.runs, request)


def _page(pages: Pages, found: QuerySet[Any], represent: Any, request: Request) -> Response:
    rows = pages.paginate_queryset(found, request)
    return pages.get_paginated_response(represent(rows))

"""The REST API. Each handler reads its input, calls one operation and encodes what it returns."""

import asyncio
from functools import partial
from http import HTTPStatus
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from chat import throttles
from chat.api import errors, inputs, streams
from chat.api.asynchronous import AsyncView, actor_of
from chat.api.negotiation import EVENT_STREAM, JSON, names
from chat.api.paging import Pages, RunPages, SessionPages
from chat.logins import login_of
from chat.rendering import render_markdown
from runs import operations
from runs.database import in_thread
from runs.errors import Invalid
from runs.operations import Data
from runs.states import OnDisconnect


@csrf_exempt
async def nothing_here(request: HttpRequest) -> JsonResponse:
    """Every address under /api/ that is none of ours, for everybody alike."""
    return JsonResponse(
        errors.body("not_found", "There is no such address in this API."), status=HTTPStatus.NOT_FOUND
    )


class Agents(AsyncView):
    """The configured agents, the default one first."""

    async def get(self, request: Request) -> Response:
        found = await in_thread(operations.agents)
        return Response({"results": found, "next": None, "previous": None})


class Sessions(AsyncView):
    """One's own sessions."""

    async def get(self, request: Request) -> Response:
        """List them, most recently changed first: ``?search=&status=&origin=&limit=&cursor=``."""
        chosen = inputs.SessionFilter.read(request.query_params.dict())
        found = operations.sessions(
            actor_of(request),
            search=chosen.get("search", ""),
            status=chosen.get("status", ""),
            origin=chosen.get("origin") or None,
        )
        return await in_thread(_page, SessionPages(), found, operations.represent_sessions, request)

    async def post(self, request: Request) -> Response:
        """Open one: ``{agent?, title?}``."""
        session = await in_thread(
            operations.create_session, actor_of(request), **inputs.NewSession.read(request.data)
        )
        return Response(
            session, HTTPStatus.CREATED, headers={"Location": reverse("api:session", args=[session["id"]])}
        )


class Session(AsyncView):
    """One session."""

    async def get(self, request: Request, session_id: str) -> Response:
        return Response(await in_thread(operations.session_snapshot, actor_of(request), session_id))

    async def patch(self, request: Request, session_id: str) -> Response:
        """Rename it: ``{title}``."""
        title = inputs.Rename.read(request.data)["title"]
        return Response(await in_thread(operations.rename_session, actor_of(request), session_id, title))

    async def delete(self, request: Request, session_id: str) -> Response:
        """Delete it and all that belongs to it; what is active is force-cancelled first."""
        await operations.delete_session(actor_of(request), session_id)
        return Response(status=HTTPStatus.NO_CONTENT)


class History(AsyncView):
    """A session's messages, oldest first: ``?limit=&before=<message>&render=html``."""

    async def get(self, request: Request, session_id: str) -> Response:
        chosen = inputs.HistoryFilter.read(request.query_params.dict())
        found = await operations.history(
            actor_of(request), session_id, limit=chosen.get("limit"), before=chosen.get("before")
        )
        if "render" in chosen:
            found = await asyncio.to_thread(_with_html, found)
        return Response(found)


class Runs(AsyncView):
    """A session's runs."""

    async def get(self, request: Request, session_id: str) -> Response:
        """List them, newest first: ``?limit=&cursor=``."""
        return await in_thread(_runs_page, request, session_id)

    async def post(self, request: Request, session_id: str) -> HttpResponseBase:
        """Start a turn: ``{input, on_disconnect?, multitask?, stream_modes?}``, header Idempotency-Key.

        Answers with the Run, or with its event stream when Accept names ``text/event-stream``.
        """
        turn = inputs.NewTurn.read(request.data)
        streamed = names(request, EVENT_STREAM)
        if turn.get("on_disconnect") == OnDisconnect.CANCEL and not streamed:
            raise Invalid(
                'With on_disconnect "cancel" the answer must be streamed; send Accept: text/event-stream.'
            )
        text = turn.pop("input")
        key = _idempotency_key(request)
        start = partial(
            _admitted, operations.start_turn, actor_of(request), session_id, text, key=key, **turn
        )
        if streamed:
            return await streams.started(login_of(request), start)
        return _accepted(await in_thread(start))


class Run(AsyncView):
    """One run."""

    async def get(self, request: Request, run_id: str) -> Response:
        return Response(await in_thread(operations.get_run, actor_of(request), run_id))


class Events(AsyncView):
    """A run's log: a page with ``Accept: application/json``, else a stream."""

    http_method_names = ["get"]

    async def get(self, request: Request, run_id: str) -> HttpResponseBase:
        chosen = inputs.EventsFilter.read(request.query_params.dict())
        if names(request, JSON) and not names(request, EVENT_STREAM):
            return Response(await in_thread(operations.events, actor_of(request), run_id, **chosen))
        if last := request.headers.get("Last-Event-ID"):
            chosen = inputs.EventsFilter.read({"after": last})
        return await streams.resumed(login_of(request), run_id, chosen.get("after", 0))


class CancelSession(AsyncView):
    """Request that a session's active run and all of its queued ones be cancelled: ``{reason?, wait?}``."""

    async def post(self, request: Request, session_id: str) -> Response:
        return await _cancel(operations.cancel_session, request, session_id)


class CancelRun(AsyncView):
    """Request that one run be cancelled: ``{reason?, wait?}``."""

    async def post(self, request: Request, run_id: str) -> Response:
        return await _cancel(operations.cancel_run, request, run_id)


class Answer(AsyncView):
    """Answer all questions of a waiting run: ``{answers: {id: value}}``."""

    async def post(self, request: Request, run_id: str) -> Response:
        answers = inputs.Answers.read(request.data)["answers"]
        return Response(await in_thread(operations.answer, actor_of(request), run_id, answers))


class Resume(AsyncView):
    """Go on with an interrupted run in a new one."""

    async def post(self, request: Request, run_id: str) -> Response:
        return _accepted(await in_thread(_admitted, operations.resume, actor_of(request), run_id))


class Retry(AsyncView):
    """Run the session's latest turn again: ``{input?}``."""

    async def post(self, request: Request, run_id: str) -> Response:
        text = inputs.Retry.read(request.data).get("input")
        return _accepted(await in_thread(_admitted, operations.retry, actor_of(request), run_id, text))


class Dismiss(AsyncView):
    """Close an interrupted run."""

    async def post(self, request: Request, run_id: str) -> Response:
        return Response(await in_thread(operations.dismiss, actor_of(request), run_id))


class ForceCancel(AsyncView):
    """End a run without its worker, for operators: ``{reason}``."""

    async def post(self, request: Request, run_id: str) -> Response:
        reason = inputs.Reason.read(request.data)["reason"]
        return Response(await in_thread(operations.force_cancel, actor_of(request), run_id, reason))


async def _cancel(operation: Any, request: Request, target: str) -> Response:
    """Request the cancel, wait as long as the client asked for; 202 while it has not settled."""
    asked = inputs.Cancel.read(request.data)
    cancellation = await in_thread(operation, actor_of(request), target, reason=asked.get("reason", ""))
    wait = asked.get("wait", 0)
    if wait and cancellation["outcome"] is None:
        cancellation = await operations.wait_for_cancellation(cancellation, wait)
    settled = cancellation["outcome"] is not None
    return Response(cancellation, HTTPStatus.OK if settled else HTTPStatus.ACCEPTED)


def _admitted(operation: Any, user: Any, *args: Any, **kwargs: Any) -> Data:
    """Start a turn in one of the ways there are, if the user has not started too many of late."""
    throttles.admit_turn(user)
    return operation(user, *args, **kwargs)


def _accepted(run: Data) -> Response:
    return Response(run, HTTPStatus.ACCEPTED, headers={"Location": reverse("api:run", args=[run["id"]])})


def _idempotency_key(request: Request) -> str | None:
    key = request.headers.get("Idempotency-Key")
    if key is None:
        return None
    try:
        return str(inputs.Key.read({"key": key})["key"])
    except ValidationError as error:
        raise ValidationError({"Idempotency-Key": error.detail["key"]}) from None  # type: ignore[call-overload]


def _runs_page(request: Request, session_id: str) -> Response:
    # In the thread as a whole: whether the session is the user's is looked up right here.
    return _page(
        RunPages(), operations.runs_of(actor_of(request), session_id), operations.represent_runs, request
    )


def _page(pages: Pages, found: QuerySet[Any], represent: Any, request: Request) -> Response:
    rows = pages.paginate_queryset(found, request)
    return Response(
        {"results": represent(rows), "next": pages.get_next_link(), "previous": pages.get_previous_link()}
    )


def _with_html(history: Data) -> Data:
    messages = [{**message, "html": render_markdown(message["text"])} for message in history["messages"]]
    return {**history, "messages": messages}

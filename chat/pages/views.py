"""The chat pages: server-rendered, complete without JavaScript; scripts make them live.

Every form works as a plain POST that redirects. A script sends the same form with
``Accept: application/json`` and gets JSON instead. A foreign id and an unknown one get the same 404 page.
"""

import uuid
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, JsonResponse
from django.shortcuts import redirect, render, resolve_url
from django.templatetags.static import static
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from chat.access import throttles
from chat.pages import session_list, transcript
from chat.pages.questions import Question
from runs import operations
from runs.errors import EngineError, IdempotencyConflict, Invalid, NotFound, NotWaiting
from runs.operations import Actor
from runs.states import Multitask, Origin

View = Callable[..., HttpResponseBase]


def page(view: View) -> View:
    """For people who are logged in; never from a cache; the engine's refusals become sentences."""

    @wraps(view)
    def guarded(request: HttpRequest, **kwargs: Any) -> HttpResponseBase:
        try:
            return view(request, **kwargs)
        except NotFound as error:
            raise Http404 from error
        except EngineError as error:
            return _refused(request, error, kwargs.get("session_id"))

    return never_cache(login_required(guarded))


@require_GET
def home(request: HttpRequest) -> HttpResponse:
    return redirect("chat:new")


@page
@require_http_methods(["GET", "HEAD", "POST"])
def new_chat(request: HttpRequest) -> HttpResponseBase:
    """The composer of a conversation that does not exist yet; the first message opens it."""
    if request.method == "POST":
        session_id = _open_session(request)
        return _done(request, "chat:session", session_id=session_id)
    return _render_page(request, None)


@page
@require_GET
def session(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    return _render_page(request, _read(request, session_id))


@page
@require_GET
def turns(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    """The turns as the page shows them, or one (``?run=``): what a script puts in place of streamed text."""
    run_id = request.GET.get("run")
    if run_id is None:
        return render(request, "pages/parts/turns.html", {"transcript": _read(request, session_id)})
    turn = transcript.read_turn(_user(request), session_id, run_id)
    if turn is None:
        raise Http404
    return render(request, "pages/parts/turn.html", {"turn": turn, "session_id": str(session_id)})


@page
@require_GET
def list_of_sessions(request: HttpRequest) -> HttpResponse:
    return render(request, "pages/parts/session_list.html", session_list.read(_user(request), request.GET))


@page
@require_POST
def send(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    """Start a turn, or put it in line behind the one that is active."""
    throttles.start_turn(
        operations.start_turn,
        _user(request),
        session_id,
        _text(request) or "",
        key=_request_id(request),
        multitask=Multitask.ENQUEUE,
    )
    return _done(request, "chat:session", session_id=session_id)


@page
@require_POST
def stop(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    cancellation = operations.cancel_session(_user(request), session_id)
    return _done(request, "chat:session", session_id=session_id, cancellation=cancellation)


def _ask(request: HttpRequest, template: str, session_id: uuid.UUID) -> HttpResponse:
    """The form that asks before something is done to a session."""
    return render(request, template, {"session": operations.session_snapshot(_user(request), session_id)})


@page
@require_http_methods(["GET", "HEAD", "POST"])
def rename(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    if request.method != "POST":
        return _ask(request, "pages/rename.html", session_id)
    operations.rename_session(_user(request), session_id, request.POST.get("title", "").strip())
    return _done(request, "chat:session", session_id=session_id)


@page
@require_http_methods(["GET", "HEAD", "POST"])
def delete(request: HttpRequest, session_id: uuid.UUID) -> HttpResponse:
    if request.method != "POST":
        return _ask(request, "pages/delete.html", session_id)
    async_to_sync(operations.delete_session)(_user(request), session_id)
    return _done(request, "chat:new")


@page
@require_POST
def answer(request: HttpRequest, session_id: uuid.UUID, run_id: uuid.UUID) -> HttpResponse:
    run = operations.runs_of(_user(request), session_id).filter(id=run_id).first()
    if run is None:
        raise Http404
    if not any(name.startswith(f"{transcript.form_name(run)}-") for name in request.POST):
        raise NotWaiting("This form is of an earlier question. Look at what is asked now.")
    asked = transcript.open_questions(run)
    answers = {}
    for question in asked:
        with suppress(ValueError):
            answers[question.id] = question.read(request.POST)
    if len(answers) < len(asked):
        return _show_errors(request, session_id, run_id, asked)
    operations.answer(_user(request), run_id, answers)
    return _done(request, "chat:session", session_id=session_id)


def _show_errors(
    request: HttpRequest, session_id: uuid.UUID, run_id: uuid.UUID, asked: list[Question]
) -> HttpResponse:
    """What is wrong with the form of some questions, beside what was typed."""
    if _wants_json(request):
        fields = dict(wrong for question in asked for wrong in question.errors)
        said = "Something is missing or wrong in this form."
        error = {"code": Invalid.code, "message": said, "fields": fields}
        return JsonResponse({"error": error}, status=Invalid.status)
    shown = _read(request, session_id)
    for turn in shown.turns:
        if turn.run["id"] == str(run_id):
            turn.questions = asked
    return _render_page(request, shown, status=Invalid.status)


def _run_command(apply: Callable[[Actor, uuid.UUID, HttpRequest], Any]) -> View:
    @page
    @require_POST
    def view(request: HttpRequest, session_id: uuid.UUID, run_id: uuid.UUID) -> HttpResponse:
        if operations.get_run(_user(request), run_id)["session"] != str(session_id):
            raise Http404
        apply(_user(request), run_id, request)
        return _done(request, "chat:session", session_id=session_id)

    return view


cancel_run = _run_command(lambda user, run_id, request: operations.cancel_run(user, run_id))
resume = _run_command(lambda user, run_id, request: throttles.start_turn(operations.resume, user, run_id))
retry = _run_command(
    lambda user, run_id, request: throttles.start_turn(operations.retry, user, run_id, _text(request))
)
dismiss = _run_command(lambda user, run_id, request: operations.dismiss(user, run_id))


@require_GET
def favicon(request: HttpRequest) -> HttpResponse:
    return redirect(static("pages/favicon.svg"), permanent=True)


def _open_session(request: HttpRequest) -> str:
    """Open a session with its first turn; both or nothing. The form's request id makes sending it twice open
    one session, and refuses other words: they would be lost in the one that there is.
    """
    text, key = _text(request) or "", _request_id(request)
    agent = operations.agents()[0]["name"]
    try:
        run = throttles.start_turn(
            operations.start_session, _user(request), text, agent=agent, origin=Origin.CHAT, key=key
        )
    except IdempotencyConflict:
        raise IdempotencyConflict(
            "This message was sent already, in other words: its chat is in the list. These need a new one."
        ) from None
    return str(run["session"])


def _text(request: HttpRequest) -> str | None:
    """What was written; a form sends each new line as two characters."""
    text = request.POST.get("text")
    return text.replace("\r\n", "\n") if text is not None else None


def _read(request: HttpRequest, session_id: uuid.UUID) -> transcript.Transcript:
    limit = None if request.GET.get("show") == "all" else transcript.PAGE
    return transcript.read(_user(request), session_id, limit=limit)


def _render_page(
    request: HttpRequest, shown: transcript.Transcript | None, status: int = 200
) -> HttpResponse:
    context: dict[str, Any] = {
        "transcript": shown,
        "session": shown.session if shown else None,
        "session_id": shown.session["id"] if shown else "",
        "list": session_list.read(_user(request), request.GET),
        "request_id": uuid.uuid4(),
        "message_limit": settings.RUNS_MESSAGE_LIMIT,
        "gone": "gone" in request.GET,
    }
    return render(request, "pages/chat.html", context, status=status)


def _done(request: HttpRequest, to: str, *, cancellation: Any = None, **kwargs: Any) -> HttpResponse:
    if _wants_json(request):
        return JsonResponse({"url": resolve_url(to, **kwargs), "cancellation": cancellation})
    return redirect(to, **kwargs)


def _refused(request: HttpRequest, error: EngineError, session_id: uuid.UUID | None) -> HttpResponse:
    if _wants_json(request):
        return JsonResponse({"error": {"code": error.code, "message": error.message}}, status=error.status)
    messages.error(request, error.message)
    return redirect("chat:session", session_id=session_id) if session_id else redirect("chat:new")


def _wants_json(request: HttpRequest) -> bool:
    return request.get_preferred_type(["text/html", "application/json"]) == "application/json"


def _request_id(request: HttpRequest) -> str:
    """The form's own, by which it is known when it comes again; one for this time only if it has none."""
    sent = request.POST.get("request_id")
    if not sent:
        return str(uuid.uuid4())
    try:
        return str(uuid.UUID(sent))
    except ValueError:
        raise Invalid('"request_id" must be a UUID.') from None


def _user(request: HttpRequest) -> Actor:
    return request.user  # type: ignore[return-value]  # login_required has seen to it

"""The history of a session as the page shows it: turns, each with its messages and how it ended."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from asgiref.sync import async_to_sync

from chat.pages.questions import Question, of_question
from chat.rendering import add_html
from runs import operations, operators
from runs.models import Run
from runs.operations import Actor, Id
from runs.reading.refusals import Refusal
from runs.states import Resolution, RunStatus, SessionStatus
from runs.wire import contract, representations

PAGE = 200  # messages on a page before the reader asks for all
TURN = 40  # messages that are read for one turn before it is looked for in all


@dataclass(slots=True)
class Turn:
    """What one run added to the conversation."""

    run: contract.Run
    messages: list[contract.Message] = field(default_factory=list)  # oldest first; the agent's with ``html``
    questions: list[Question] = field(default_factory=list)  # open ones only
    refusal: str = ""  # why they are asked again
    answered: bool = False  # waiting, and the answer is stored already
    words: str = ""  # the user's, for editing and sending again
    # Why an operator decided about it, being interrupted; None if its user did, or nobody.
    operators_reason: str | None = None
    is_open: bool = False  # to a decision: resume, retry, dismiss, or to be said again

    @property
    def is_one_choice(self) -> bool:
        """All it asks is answered by one choice, so that each choice is a button."""
        parts = [part for question in self.questions for part in question.parts]
        return len(parts) == 1 and not parts[0].fields

    @property
    def uncertain(self) -> bool:
        """A tool of this turn started and left no result, so it may have done its work."""
        return any(
            call["effect"] == "unknown" for message in self.messages for call in message["tool_calls"] or ()
        )


@dataclass(frozen=True, slots=True)
class Transcript:
    """A session, its turns, and the point from which a client follows on."""

    session: contract.Session
    turns: list[Turn]  # of the runs that have left the queue
    cursor: tuple[str, int] | None  # (run, seq) of the last event that is in the turns
    complete: bool  # False when older messages were left out


def read(actor: Actor, session_id: Id, *, limit: int | None = PAGE) -> Transcript:
    """The session's transcript, or the end of it. Raises NotFound for what is unknown or somebody else's."""
    transcript = _read(actor, session_id, limit)
    _add_html(transcript.turns)
    return transcript


def read_turn(actor: Actor, session_id: Id, run_id: Id) -> Turn | None:
    """One turn of the session, or None when its messages are in the history no longer."""
    transcript = _read(actor, session_id, TURN)
    found = _find(transcript, run_id)
    if not transcript.complete and (found is None or found is transcript.turns[0]):
        # It may begin before the part that was read.
        found = _find(_read(actor, session_id, None), run_id)
    if found is not None:
        _add_html([found])
    return found


def _read(actor: Actor, session_id: Id, limit: int | None) -> Transcript:
    history = async_to_sync(operations.history)(actor, session_id, limit=limit, audience=None)
    messages, latest = history["messages"], history["run"]
    return Transcript(
        session=history["session"],
        turns=_turns(actor, history),
        cursor=_cursor(latest),
        complete=limit is None or len(messages) < limit,
    )


def _add_html(turns: Sequence[Turn]) -> None:
    """Give what the agent said its HTML; of a text on its way the page formats what is whole already."""
    said = [
        message
        for turn in turns
        for message in turn.messages
        if message["role"] == "assistant" and message["status"] != "streaming"
    ]
    async_to_sync(add_html)(said)


def _find(transcript: Transcript, run_id: Id) -> Turn | None:
    return next((turn for turn in transcript.turns if turn.run["id"] == str(run_id)), None)


def open_questions(run: Run, refused: Refusal | None = None) -> list[Question]:
    """What a waiting run asks, as forms; with the answers that were refused, if some were.

    A run that asks again does so under another claim. So a form of what it asked before has other names.
    """
    asked = []
    for number, question in enumerate(run.questions or ()):
        made = of_question(question)
        made.give_names(f"{form_name(run)}-{number}")
        if refused is not None and question["id"] in refused.answers:
            made.fill(refused.answers[question["id"]])
        asked.append(made)
    return asked


def form_name(run: Run) -> str:
    """What the names of all inputs of a run's questions begin with."""
    return f"answer-{run.claim}"


def _cursor(latest: contract.Run | None) -> tuple[str, int] | None:
    if latest is None:
        return None
    # What is in the queue is no turn yet: all of its events are still to come.
    return latest["id"], 0 if latest["position"] is None else latest["last_seq"]


def _turns(actor: Actor, history: contract.History) -> list[Turn]:
    session, messages, latest = history["session"], history["messages"], history["run"]
    shown = {message["run"] for message in messages if message["run"]}
    if latest is not None and latest["resolution"] != Resolution.RETRIED:
        shown.add(latest["id"])
    runs = operations.runs_of(actor, session["id"]).filter(id__in=shown, position__isnull=False)
    rows = list(runs.order_by("position"))
    represented = {run["id"]: run for run in representations.runs(rows)}
    if latest is not None and latest["id"] in represented:
        represented[latest["id"]] = latest  # the one that was read together with the messages
    turns = {str(row.id): _turn(row, represented[str(row.id)]) for row in rows}
    for turn in turns.values():
        if session["status"] == SessionStatus.INTERRUPTED:
            turn.is_open = turn.run["status"] == RunStatus.INTERRUPTED and turn.run["resolution"] is None
        else:
            turn.is_open = latest is not None and turn.run["id"] == latest["id"]
    _add_reasons(turns)
    place = next(iter(turns.values()), None)
    for message in messages:
        if message["run"] in turns:
            place = turns[message["run"]]
        elif message["run"] is not None:
            continue  # still in the queue
        if place is not None:
            place.messages.append(message)
    return list(turns.values())


def _add_reasons(turns: dict[str, Turn]) -> None:
    decided = {
        (run_id, turn.run["resolution"]): turn
        for run_id, turn in turns.items()
        if turn.run["status"] == RunStatus.INTERRUPTED and turn.run["resolution"] is not None
    }
    if decided:
        reasons = operators.reasons_of_decisions(run_id for run_id, _ in decided)
        for key, turn in decided.items():
            turn.operators_reason = reasons.get(key)


def _turn(row: Run, run: contract.Run) -> Turn:
    turn = Turn(run=run, words=row.input)
    if run["status"] == RunStatus.WAITING:
        turn.answered = row.answers is not None
        if not turn.answered:
            refused = operations.refusal(row)
            turn.questions = open_questions(row, refused)
            turn.refusal = refused.reason if refused is not None else ""
    return turn

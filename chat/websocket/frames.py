"""The frames of a socket. Each is one JSON text: a change for the client, or a command of the client's."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from chat.access import throttles
from chat.api import inputs
from runs import operations
from runs.errors import Invalid
from runs.foundation.values import clean
from runs.live.follow import (
    CancellationChanged,
    EffectChanged,
    Event,
    Item,
    SessionChanged,
    SessionDeleted,
    SummaryChanged,
)
from runs.operations import Actor, Data, Started
from runs.states import CancelOutcome
from runs.wire import contract


def encode(item: Item) -> str:
    """The frame that tells a client of ``item``."""
    if isinstance(item, Event):
        return f'{{"type":"run.event","event":{item.json}}}'  # serialised once, for all who follow
    return clean(json.dumps(_frame(item), ensure_ascii=False, separators=(",", ":")))


def _frame(item: Item) -> Data:
    match item:
        case SessionChanged():
            return {"type": "session.state_changed", "session": item.session}
        case CancellationChanged():
            return {
                "type": "session.cancellation_changed",
                "session_id": item.session,
                "cancellation_pending": item.pending,
                "cancellation_revision": item.revision,
            }
        case EffectChanged():
            return {
                "type": "tool.effect_changed",
                "run": item.run,
                "tool_call": item.tool_call,
                "effect": item.effect,
            }
        case SessionDeleted():
            return {"type": "session.deleted", "id": item.session}
        case SummaryChanged():
            return {"type": "session.summary", **item.summary}
        case _:
            raise TypeError(f"There is no frame for {item!r}")


@dataclass(frozen=True, slots=True)
class Command:
    """What a frame asks for, checked and ready."""

    request_id: str | None  # comes back with the answer
    act: Callable[[Actor], Any]  # called with the user in a database thread; raises EngineError
    awaits_cancel: bool  # answered when the cancel that ``act`` requests has settled


def command(frame: Data, session_id: str) -> Command:
    """The command in a frame to the socket of ``session_id``.

    Raises Invalid or ValidationError with a sentence on what is wrong with it.
    """
    if frame["type"] not in _COMMANDS:
        raise Invalid("There is no frame of this type.")
    reader, act = _COMMANDS[frame["type"]]
    values = {"session": session_id, "request_id": frame.get("request_id"), **reader.read(frame)}
    return Command(
        values["request_id"], lambda user: act(user, values), awaits_cancel=frame["type"] == "agent.cancel"
    )


def failure_of(cancellation: contract.Cancellation) -> str | None:
    """Why a settled cancel did not do what was asked; None when it did."""
    return _FAILURES.get(cancellation["outcome"])


_FAILURES: dict[str | None, str] = {
    CancelOutcome.TIMED_OUT: "The worker did not answer in time. The turn goes on; try the cancel again.",
    CancelOutcome.FAILED: "The cancel broke off. The turn may go on; try the cancel again.",
}


def _start(user: Actor, values: Data) -> Started:
    options = {name: values[name] for name in ("multitask", "stream_modes") if name in values}
    return throttles.start_turn(
        operations.start_turn, user, values["session"], values["input"], key=values["request_id"], **options
    )


_COMMANDS: dict[str, tuple[type[inputs.Input], Callable[[Actor, Data], Any]]] = {
    "turn.start": (inputs.TurnFrame, _start),
    "agent.cancel": (
        inputs.CancelFrame,
        lambda user, values: operations.cancel_session(
            user, values["session_id"], reason=values.get("reason", "")
        ),
    ),
    "run.answer": (
        inputs.AnswerFrame,
        lambda user, values: operations.answer(user, values["run"], values["answers"]),
    ),
    "run.resume": (
        inputs.RunFrame,
        lambda user, values: throttles.start_turn(operations.resume, user, values["run"]),
    ),
    "run.retry": (
        inputs.RetryFrame,
        lambda user, values: throttles.start_turn(operations.retry, user, values["run"], values.get("input")),
    ),
    "run.dismiss": (inputs.RunFrame, lambda user, values: operations.dismiss(user, values["run"])),
}

"""The frames of a socket: what the engine tells becomes text, what a client says becomes a command."""

import json
from collections.abc import Callable
from dataclasses import dataclass

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
from runs.operations import Actor, Data
from runs.states import CancelOutcome


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
    act: Callable[[Actor], Data]  # to be called with the user in a database thread; raises EngineError
    awaited: bool  # whether the answer is the end of the cancel that ``act`` has requested


def command(frame: Data, session_id: str) -> Command:
    """The command in a frame to the socket of ``session_id``.

    Raises Invalid or ValidationError with a sentence on what is wrong with it.
    """
    if frame["type"] not in _COMMANDS:
        raise Invalid("There is no frame of this type.")
    reader, act = _COMMANDS[frame["type"]]
    values = {"session": session_id, "request_id": frame.get("request_id"), **reader.read(frame)}
    return Command(values["request_id"], lambda user: act(user, values), awaited=act is _cancel)


def failure_of(cancellation: Data) -> str | None:
    """Why a settled cancel did not do what was asked; None when it did."""
    return _FAILURES.get(cancellation["outcome"])


_FAILURES = {
    CancelOutcome.TIMED_OUT: "The worker did not answer in time. The turn goes on; try the cancel again.",
    CancelOutcome.FAILED: "The cancel broke off. The turn may go on; try the cancel again.",
}


def _start(user: Actor, values: Data) -> Data:
    throttles.admit_turn(user)
    options = {name: values[name] for name in ("multitask", "stream_modes") if name in values}
    return operations.start_turn(
        user, values["session"], values["input"], key=values["request_id"], **options
    )


def _cancel(user: Actor, values: Data) -> Data:
    return operations.cancel_session(user, values["session_id"], reason=values.get("reason", ""))


def _answer(user: Actor, values: Data) -> Data:
    return operations.answer(user, values["run"], values["answers"])


def _resume(user: Actor, values: Data) -> Data:
    throttles.admit_turn(user)
    return operations.resume(user, values["run"])


def _retry(user: Actor, values: Data) -> Data:
    throttles.admit_turn(user)
    return operations.retry(user, values["run"], values.get("input"))


def _dismiss(user: Actor, values: Data) -> Data:
    return operations.dismiss(user, values["run"])


_COMMANDS: dict[str, tuple[type[inputs.Input], Callable[[Actor, Data], Data]]] = {
    "turn.start": (inputs.TurnFrame, _start),
    "agent.cancel": (inputs.SessionFrame, _cancel),
    "run.answer": (inputs.AnswerFrame, _answer),
    "run.resume": (inputs.RunFrame, _resume),
    "run.retry": (inputs.RetryFrame, _retry),
    "run.dismiss": (inputs.RunFrame, _dismiss),
}

"""The tool calls of one execution: what the model asked for, what ran, and the one end that each call gets.

A call whose tool raised has not failed yet: the graph may try again, or put a message in its place. The call
ends with that message, or with the turn.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from langchain_core.messages import ToolMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.errors import GraphBubbleUp
from langgraph.types import Command

from runs.foundation.exceptions import described
from runs.foundation.limits import PROGRESS_LIMIT, TOOL_NAME_LIMIT
from runs.foundation.masking import masked
from runs.foundation.values import clean, result_text, to_json, truncate, truncate_to_fit
from runs.states import Effect, EventType
from runs.translation.steps import GraphSteps

logger = logging.getLogger(__name__)

_serializer = JsonPlusSerializer()


@dataclass(slots=True, eq=False)
class CallState:
    """A tool call and what the log says of it."""

    id: str
    message: str | None  # the assistant message that holds it
    name: str
    args: dict[str, Any]
    started: bool = False  # its tool.started is in the log
    ended: bool = False  # its end is in the log
    counted: bool = False  # an earlier run of the turn began it, and has it in its statistics
    may_have_begun: bool = False  # in an earlier run of the turn
    task: str | None = None  # the task of the graph whose message holds it
    gated: bool = False  # a ToolNode runs it, and the gate tells of its start and its end
    raised: bool = False  # it raised, and nobody has put a message in its place yet


@dataclass(frozen=True, slots=True)
class Kept:
    """What a call of a ToolNode has given, to be given again if its step starts over."""

    result: Any  # as the ToolNode gets it
    questions: int = 0  # that it asked the user, and that were answered

    def dump(self, logged: str) -> bytes | None:
        """For the database; None if the log has all of it, or if it cannot be stored.

        ``logged`` is the text of it in the log.
        """
        message = self.result
        if (
            not self.questions
            and type(message) is ToolMessage
            and message.content == logged
            and message.artifact is None
            and not message.additional_kwargs
        ):
            return None
        try:
            kind, data = _serializer.dumps_typed((self.questions, self.result))
        except Exception:
            logger.exception("What the tool %s gave cannot be kept.", getattr(message, "name", ""))
            return None
        return kind.encode() + b":" + data

    @classmethod
    def load(cls, dumped: bytes) -> "Kept":
        """What ``dump`` made."""
        kind, _, data = bytes(dumped).partition(b":")
        questions, result = _serializer.loads_typed((kind.decode(), data))
        return cls(result, questions)


@dataclass(frozen=True, slots=True)
class _ToolEnd:
    """How one execution of a tool ended."""

    output: Any
    error: BaseException | None
    cancelled: bool  # the error is the CancelledError that somebody else sent
    duration_ms: int


class ToolTranslation:
    """Tool chunks, tool messages and tool callbacks into tool events.

    ``on_result`` is called when a call that a message holds has got its end in the log. ``on_return`` is
    called with the call's id when its tool has returned, even after the end of the turn.
    """

    def __init__(
        self,
        emit: Callable[[EventType, dict[str, Any]], None],
        count: Callable[..., None],
        on_result: Callable[[], None],
        known: Iterable[CallState],
        *,
        steps: GraphSteps,
        on_return: Callable[[str], None] = lambda call_id: None,
        kept: Mapping[str, Kept] | None = None,
        keep: Callable[[str, bytes], None] = lambda call_id, dumped: None,
    ) -> None:
        self._kept = dict(kept or {})  # by call id
        self._keep = keep
        self._emit = emit
        self._count = count
        self._on_result = on_result
        self._on_return = on_return
        self._calls = {call.id: replace(call) for call in known}
        self._open_before = {call.id for call in self._calls.values() if call.started and not call.ended}
        self.gated_tools: Collection[str] = ()  # the tools whose starts are committed before they begin
        self.steps = steps
        self._executions: dict[UUID, tuple[str, float]] = {}
        self._by_hand: dict[str, str] = {}  # executions without a call id, to the ids of their calls
        self._nodes: dict[str, str | None] = {}  # of each call that an execution has begun
        self._ends: dict[str, _ToolEnd] = {}
        self.open: dict[str, float] = {}  # call id to the monotonic time its tool began, while it runs

    def ask(self, message: str, calls: Iterable[dict[str, Any]], task: str | None) -> None:
        """An assistant message of this task is complete and holds these calls, ``{id, name, args}`` each."""
        for call in calls:
            if call["id"] in self._calls:  # some providers use an id again in a later message: another call
                self._nodes.pop(call["id"], None)
                self._ends.pop(call["id"], None)
                self._kept.pop(call["id"], None)
            self._calls[call["id"]] = CallState(call["id"], message, call["name"], call["args"], task=task)

    @property
    def unanswered(self) -> bool:
        """Whether a message holds a call that has no result."""
        return any(call.message is not None and not call.ended for call in self._calls.values())

    def has_begun_something(self) -> bool:
        """Whether a call has begun in this execution that did not ask before it."""
        return any(
            call_id not in self._open_before or call_id in self._ends or self._calls[call_id].ended
            for call_id in self._nodes
        )

    def has(self, call_id: str) -> bool:
        """Whether the turn has a call of this id."""
        return call_id in self._calls

    def name(self, call_id: str) -> str:
        """The name of the tool of a call."""
        call = self._calls.get(call_id)
        return call.name if call else ""

    # Chunks

    def feed(self, namespace: tuple[str, ...], payload: dict[str, Any]) -> None:
        """A chunk of the stream mode ``tools``."""
        event, call_id = payload["event"], clean(payload["tool_call_id"])
        call = self._calls.get(self._by_hand.get(call_id, call_id))
        if event == "tool-started":
            call = call or self._run_by_hand(call_id, payload) or self._unasked(call_id, payload)
            if not call.ended:
                call.raised = False
                self._start(call, self._nodes.get(call.id), namespace)
        elif call is None or call.ended:
            return
        elif event == "tool-output-delta":
            text = truncate(result_text(payload["delta"]), PROGRESS_LIMIT)
            self._emit(EventType.TOOL_PROGRESS, {"tool_call": call.id, "text": text})
        elif call.gated:
            return  # its end is told by the gate, with what the graph gets
        elif event == "tool-finished":
            self._finish(call, payload["output"])
        elif event == "tool-error":
            self._raised(call)

    def _raised(self, call: CallState) -> None:
        end = self._ends.get(call.id)
        if end is not None and end.cancelled:
            return  # what it did is unknown; the end of the turn, which is near, says so
        call.raised = True
        if call.message is None:  # nobody will put a message in its place
            self._fail_unanswered(call)

    def result(self, namespace: tuple[str, ...], node: str | None, message: ToolMessage) -> None:
        """A tool's message in the graph: news only if the tool did not run as one, or raised."""
        call = self._calls.get(clean(message.tool_call_id))
        if call is None or call.ended:
            return
        if message.status != "error":
            self._start(call, node, namespace)
        self._finish(call, message)

    def recover(self, message: ToolMessage) -> None:
        """A result that was in the checkpoint already: news only if the log lacks it."""
        call = self._calls.get(clean(message.tool_call_id))
        if call is None or call.ended:
            return
        self._start(call, None, (), counts=not call.counted)
        self._finish(call, message)

    def log_begun(self) -> None:
        """Log the start of each tool that has begun, though its chunk may still be in the queue."""
        for call in self._calls.values():
            if call.id in self._nodes and not call.ended:
                self._start(call, self._nodes[call.id], ())

    def not_begun(self) -> list[str]:
        """The ids of the open calls that are known not to have begun."""
        return [call.id for call in self._calls.values() if not call.ended and not self._may_have_begun(call)]

    def _may_have_begun(self, call: CallState) -> bool:
        if call.started or call.may_have_begun or call.id in self._nodes:
            return True
        return call.name not in self.gated_tools and not self.steps.nothing_followed(call.task)

    def close(self) -> None:
        """No chunk comes any more: end every call that has no end."""
        for call in list(self._calls.values()):
            if not call.ended:
                self._close(call)

    # Calls of a ToolNode, told by its gate

    def begin(
        self, call_id: str, name: str, args: dict[str, Any], node: str | None, namespace: tuple[str, ...]
    ) -> None:
        """A call is about to start."""
        call_id = clean(call_id)
        call = self._calls.get(call_id)
        if call is None:
            call = self._unasked(call_id, {"tool_name": name, "input": args})
        call.raised, call.gated = False, True
        self._start(call, node, namespace)

    def end(self, call_id: str, result: Any, questions: int) -> None:
        """A call has given this, as the graph gets it, and has had answers to so many questions."""
        call = self._calls.get(call_id)
        if call is None or call.ended:
            return
        kept = self._kept[call_id] = Kept(result, questions)
        if (dumped := kept.dump(self._finish(call, result))) is not None:
            self._keep(call_id, dumped)

    def kept(self, call_id: str) -> Kept | None:
        """What the call has given in this turn, if its step has to start over."""
        call = self._calls.get(call_id)
        return self._kept.get(call_id) if call is not None and call.ended else None

    def forget(self, calls: Iterable[str]) -> None:
        """The step of these calls is over, and the graph has what they gave."""
        for call_id in calls:
            self._kept.pop(call_id, None)

    # Callbacks: they are ahead of the chunks

    def began(self, run_id: UUID, call_id: str, node: str | None) -> None:
        """A tool begins to run."""
        call_id = clean(call_id)
        now = time.monotonic()
        self._executions[run_id] = (call_id, now)
        self.steps.tool_began(run_id)
        self._nodes[call_id] = node
        self._ends.pop(call_id, None)
        self.open[call_id] = now

    def returned(self, run_id: UUID, output: Any) -> None:
        """A tool has returned."""
        call_id = self._ended(run_id, output, None)
        if call_id is not None:
            self._on_return(call_id)

    def raised(self, run_id: UUID, error: BaseException, cancelled: bool) -> None:
        """A tool has raised or asks the user something. ``cancelled`` says that a cancel made it raise."""
        self._ended(run_id, None, error, cancelled)

    def _ended(
        self, run_id: UUID, output: Any, error: BaseException | None, cancelled: bool = False
    ) -> str | None:
        """Returns the id of the call."""
        if (execution := self._executions.pop(run_id, None)) is None:
            return None
        call_id, since = execution
        self.steps.tool_ended(run_id)
        self.open.pop(call_id, None)
        if not isinstance(error, GraphBubbleUp):  # that one asks the user something, and goes on afterwards
            duration_ms = int((time.monotonic() - since) * 1000)
            self._ends[call_id] = _ToolEnd(output, error, cancelled, duration_ms)
        return call_id

    # Events

    def _run_by_hand(self, execution: str, payload: dict[str, Any]) -> CallState | None:
        """The call that a node runs itself without its id: the first that asks for this and has not begun."""
        asked = (payload["tool_name"], to_json(payload.get("input")))
        for call in self._calls.values():
            is_open = call.message is not None and not call.started and not call.ended
            if is_open and (call.name, call.args) == asked:
                self._by_hand[execution] = call.id
                self._rename(execution, call.id)
                return call
        return None

    def _rename(self, execution: str, call_id: str) -> None:
        """Keep what callbacks have told of an execution under the id of its call."""
        if execution in self._nodes:
            self._nodes[call_id] = self._nodes.pop(execution)
        if execution in self._ends:
            self._ends[call_id] = self._ends.pop(execution)
        if execution in self.open:
            self.open[call_id] = self.open.pop(execution)
        self._executions = {
            run_id: (call_id if executed == execution else executed, since)
            for run_id, (executed, since) in self._executions.items()
        }

    def _unasked(self, call_id: str, payload: dict[str, Any]) -> CallState:
        args = payload.get("input")
        name = truncate_to_fit(payload["tool_name"], TOOL_NAME_LIMIT)
        call = self._calls[call_id] = CallState(
            call_id, None, name, to_json(args) if isinstance(args, dict) else {}
        )
        return call

    def _start(
        self, call: CallState, node: str | None, namespace: tuple[str, ...], *, counts: bool = True
    ) -> None:
        if call.started:
            return
        call.started = True
        data = {"tool_call": call.id, "message": call.message, "name": call.name, "args": call.args}
        self._emit(EventType.TOOL_STARTED, {**data, "node": node, "namespace": list(namespace)})
        if counts:
            self._count(tool_calls=1)

    def _finish(self, call: CallState, output: Any) -> str:
        """Returns the text of it in the log."""
        message = _message_for(call.id, output)
        failed = message is not None and message.status == "error"
        if message is not None:
            output = message.content
        elif isinstance(output, Command):
            output = ""  # an instruction to the graph, no text
        text = result_text(output)
        end = self._ends.get(call.id)
        if failed or (end is not None and end.error is not None):
            text = masked(text)  # what stands in the place of an error may quote it; the model gets it whole
        if failed:
            self._fail(call, text)
        else:
            data = {"tool_call": call.id, "result": text, "duration_ms": self._duration(call)}
            self._end(call, EventType.TOOL_COMPLETED, data)
        return text

    def _fail_unanswered(self, call: CallState) -> None:
        """It raised, and the graph has put nothing in its place."""
        end = self._ends.get(call.id)
        if end is not None and end.error is not None:
            logger.info("The tool %s failed: %s", call.name, described(end.error))
        self._fail(call, "The tool failed.")

    def _fail(self, call: CallState, error: str) -> None:
        data = {"tool_call": call.id, "error": error, "duration_ms": self._duration(call)}
        self._end(call, EventType.TOOL_FAILED, data)

    def _end(self, call: CallState, event: EventType, data: dict[str, Any]) -> None:
        call.ended = True
        self._emit(event, data)
        if call.message is not None:
            self._count(message_count=1)
            self._on_result()

    def _duration(self, call: CallState) -> int | None:
        end = self._ends.get(call.id)
        return end.duration_ms if end is not None else None

    def _close(self, call: CallState) -> None:
        if call.id in self._nodes:  # it began, though its chunk may still be in the queue
            self._start(call, self._nodes[call.id], ())
        end = self._ends.get(call.id)
        if end is not None and end.error is None:
            self._finish(call, end.output)  # the result had arrived
        elif not end.cancelled if end is not None else call.raised:
            self._fail_unanswered(call)
        else:
            effect = Effect.without_result(may_have_begun=self._may_have_begun(call))
            self._end(call, EventType.TOOL_CANCELLED, {"tool_call": call.id, "effect": effect.value})


def _message_for(call_id: str, output: Any) -> ToolMessage | None:
    """The message for this call in whatever a tool gave back: itself, in a list, or in a Command's update."""
    if isinstance(output, ToolMessage):
        return output if clean(output.tool_call_id) == call_id else None
    if isinstance(output, Command):
        return _message_for(call_id, output.update)
    if isinstance(output, dict):
        output = [value for value in output.values() if isinstance(value, list | ToolMessage)]
    if isinstance(output, list):
        found = (
            _message_for(call_id, item) for item in output if isinstance(item, list | ToolMessage | Command)
        )
        return next((message for message in found if message is not None), None)
    return None

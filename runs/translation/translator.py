"""LangGraph's chunks into the events of the durable log, and into counts, for any graph.

Takes ``astream(..., stream_mode=["messages", "updates", "values", "tools", "custom"], subgraphs=True)`` as it
comes; neither tools nor models are wrapped. What the log says follows from these rules:

- An assistant message starts with its first text, so a call that is cut while it is still being spelled out
  leaves nothing behind. The text that was told is the text of ``message.completed``.
- A message of an LLM call is complete when the call has ended and all its chunks were told: callbacks run
  ahead of the chunks. An LLM call that broke off and is repeated by its node leaves an interrupted message
  that counts like any other, because it was shown.
- Each call of an assistant message gets one end. A tool that raised is not failed yet: whoever runs it may
  try again or put a message in its place (``runs.translation.tools``).
- A tool that was run without any message asking for it is logged with ``message`` null, and no message is
  counted for it.
- What an earlier execution of the run has logged is not logged again (``LoggedBefore``). What a lost one had
  saved and not logged is logged by the one that goes on (``recover``).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langgraph.types import Interrupt

from runs.foundation.values import clean, to_json
from runs.log.transcript import closing_note, note_id
from runs.states import EventType, RunStatus
from runs.stopping.cancel_token import CancelToken
from runs.translation.callbacks import RunCallbacks
from runs.translation.conversation import Conversation, Told
from runs.translation.ids import OwnIds
from runs.translation.messages import MessageTranslation
from runs.translation.steps import GraphSteps
from runs.translation.tool_gate import Mark
from runs.translation.tools import CallState, Kept, ToolTranslation


class Emitter(Protocol):
    """Where events and counts go."""

    def emit(self, event: EventType, data: dict[str, Any], /) -> None:
        """Append an event."""

    def count(self, **deltas: int) -> None:
        """Add to the run's statistics."""

    def keep(self, call_id: str, dumped: bytes, /) -> None:
        """Keep what a tool call has given, in the transaction of the events around it."""


@dataclass(frozen=True, slots=True)
class LoggedBefore:
    """What earlier executions of the run, or of the run it resumes, have logged."""

    messages: frozenset[str] = frozenset()  # ids of completed assistant messages
    calls: tuple[CallState, ...] = ()  # in the order of the log
    kept: Mapping[str, Kept] = field(default_factory=dict)  # what calls have given, by their ids
    told: Mapping[str, Told] = field(default_factory=dict)  # messages that count as answers, by their ids


class Translator:
    """The translation of one execution. Made and used on the event loop.

    Let the graph run where ``handler`` is ``callbacks.current``. ``feed`` every chunk, and ``close`` whatever
    the end. ``on_result`` is called on the loop with the id of each tool call that has returned, even after
    the end.
    """

    def __init__(
        self,
        emitter: Emitter,
        *,
        run_id: UUID | str,
        log_updates: bool = False,
        log_custom: bool = False,
        known: LoggedBefore | None = None,
        token: CancelToken | None = None,
        on_result: Callable[[str], None] = lambda call_id: None,
    ) -> None:
        known = known or LoggedBefore()
        self._emit = emitter.emit
        self._run_id = run_id
        self._log_updates = log_updates
        self._log_custom = log_custom
        self._closed = False
        steps = GraphSteps()
        self.conversation = Conversation(emitter.emit, steps, self._in_state, known.told)
        self.tools = ToolTranslation(
            emitter.emit,
            emitter.count,
            self.conversation.result_told,
            known.calls,
            steps=steps,
            on_return=on_result,
            kept=known.kept,
            keep=emitter.keep,
        )
        self.messages = MessageTranslation(
            emitter.emit,
            emitter.count,
            self.tools.ask,
            steps=steps,
            conversation=self.conversation,
            logged=known.messages,
        )
        ids = OwnIds(lambda given: self.conversation.has(given) or self.tools.has(given))
        self.handler = RunCallbacks(self.messages, self.tools, ids, token or CancelToken())
        self.errors = self.handler.errors  # what broke so far
        self.questions: list[dict[str, Any]] = []  # that the graph asked the user

    def recover(self, namespace: tuple[str, ...], messages: Iterable[BaseMessage]) -> None:
        """Log what a lost execution left in the checkpoint of this turn, as far as the log lacks it."""
        for message in messages:
            if isinstance(message, ToolMessage):
                self.tools.recover(message)
            elif isinstance(message, AIMessage):
                self.messages.feed_whole(namespace, None, message)

    def _in_state(self, message: BaseMessage) -> None:
        """Log a message that a step put into the state, if nothing of the stream has told it."""
        if isinstance(message, ToolMessage):
            self.tools.result((), None, message)
        elif isinstance(message, AIMessage):
            self.messages.feed_whole((), None, message)

    def feed(self, namespace: tuple[str, ...], mode: str, payload: Any) -> None:
        """Take one chunk of the stream."""
        if self._closed:
            return
        if mode == "messages":
            message, metadata = payload
            if isinstance(message, ToolMessage):
                self.tools.result(namespace, metadata.get("langgraph_node"), message)
            else:
                self.messages.feed(namespace, message, metadata)
        elif mode == "tools":
            if isinstance(payload, Mark):
                payload.pass_by()
            else:
                self.tools.feed(namespace, payload)
        elif mode == "updates":
            self._feed_updates(namespace, payload)
        elif mode == "values" and not namespace:
            self.conversation.feed_state(payload)
        elif mode == "custom" and self._log_custom:
            self._emit(EventType.GRAPH_CUSTOM, {"namespace": list(namespace), "data": to_json(payload)})

    def _feed_updates(self, namespace: tuple[str, ...], update: Any) -> None:
        if not isinstance(update, dict):
            return
        if not namespace:
            self.conversation.feed_update(update)
        for node, data in update.items():
            if node == "__interrupt__":
                self._ask(data)
            elif self._log_updates and node != "__metadata__":
                event = {"node": clean(node), "namespace": list(namespace), "data": to_json(data)}
                self._emit(EventType.GRAPH_UPDATE, event)

    def _ask(self, interrupts: Iterable[Any]) -> None:
        asked = {question["id"] for question in self.questions}
        for interrupt in interrupts:
            if interrupt.id not in asked:  # it comes again from each graph around the one that asks
                asked.add(interrupt.id)
                self.questions.append(question_of(interrupt))

    def has_begun_something(self) -> bool:
        """Whether a model or a tool has begun in this execution. A tool that asks begins again and does not
        count.
        """
        return self.messages.meter.begun > 0 or self.tools.has_begun_something()

    # The end

    def close(self, status: RunStatus) -> None:
        """No chunk comes any more: end what is open, as the run's ``status`` wants it.

        What had arrived and was not logged yet is logged now, so a result is not taken for an unknown effect.
        A waiting run keeps its open tool calls; a later execution will end them. A turn that did not
        complete and does not end with an assistant's text gets a note, so that log, page and model see the
        same words. A second call does nothing.
        """
        if not self._closed:
            self._closed = True
            self.messages.close()
            self.conversation.close(is_complete=status == RunStatus.COMPLETED)
        if status == RunStatus.WAITING:
            return
        self.tools.close()
        message_id = note_id(self._run_id)
        text = closing_note(status, is_answered=self.conversation.ends_with_text)
        if text and not self.messages.has_logged(message_id):
            self.messages.start(message_id, None, ())  # without a delta: it is no token of the model's
            self.messages.complete(message_id, text, [], usage=None, status="interrupted")


def question_of(interrupt: Interrupt) -> dict[str, Any]:
    """An interrupt of the graph as Question."""
    question = {"id": interrupt.id, "value": to_json(interrupt.value)}
    if interrupt.response_schema is not None:
        question["response_schema"] = to_json(interrupt.response_schema)
    return question

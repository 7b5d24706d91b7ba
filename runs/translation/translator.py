"""LangGraph's chunks into the events of the durable log, and into counts, for any graph.

Takes ``astream(..., stream_mode=["messages", "updates", "tools", "custom"], subgraphs=True)`` as it comes;
neither tools nor models are wrapped. What the log says follows from these rules:

- An assistant message starts with its first text, so a call that is cut while it is still being spelled out
  leaves nothing behind. The text that was told is the text of ``message.completed``.
- A message of an LLM call is complete when the call has ended and all its chunks were told: callbacks run
  ahead of the chunks. An LLM call that broke off and is repeated by its node leaves an interrupted message
  that counts like any other, because it was shown.
- Each call of an assistant message gets one end. A tool that raised is not failed yet: whoever runs it may
  try again or put a message in its place (``runs.translation.tools``).
- A tool that was run without any message asking for it is logged with ``message`` null, and no message is
  counted for it.
- What an earlier execution of the run has logged is not logged again (``Known``); what one that was lost
  had saved and not logged is logged by the one that goes on (``recover``).
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import LLMResult

from runs.foundation.limits import TOOL_NAME_LIMIT
from runs.foundation.values import CleanStream, clean, text_of, to_json, truncate, truncate_to_fit
from runs.log.transcript import NOTES, note_id
from runs.states import EventType, RunStatus
from runs.translation.callbacks import CallbackRelay
from runs.translation.tools import KnownCall, ToolTranslation
from runs.translation.usage import LLMCall, LLMMeter

__all__ = ["Emitter", "Known", "KnownCall", "Translator"]


class Emitter(Protocol):
    """Where events and counts go."""

    def emit(self, event: EventType, data: dict[str, Any], /) -> None:
        """Append an event."""

    def count(self, **deltas: int) -> None:
        """Add to the run's statistics."""


@dataclass(frozen=True, slots=True)
class Known:
    """What earlier executions of the run, or of the run it resumes, have logged."""

    messages: frozenset[str] = frozenset()  # ids of completed assistant messages
    calls: tuple[KnownCall, ...] = ()  # in the order of the log
    ends_with_text: bool = False  # the turn's last message so far is an assistant's text without calls


@dataclass(slots=True, eq=False)
class _Stream:
    """The message of one LLM call, as far as it was told."""

    call: LLMCall
    metadata: dict[str, Any]
    id: str = ""  # given by the first chunk
    namespace: tuple[str, ...] = ()
    fed: int = 0  # chunks taken from the stream
    opened: bool = False  # message.started is in the log
    pieces: list[str] = field(default_factory=list)
    cleaning: CleanStream = field(default_factory=CleanStream)

    @property
    def done(self) -> bool:
        """The call has ended and nothing of it waits in the queue. A message that came whole is one chunk."""
        return self.call.ended and self.fed >= max(self.call.chunks, 1)


class Translator:
    """The translation of one execution. Made and used on the event loop.

    Give ``callbacks`` to the graph's config, ``feed`` every chunk, and ``close`` in the end whatever the end.
    """

    def __init__(
        self,
        emitter: Emitter,
        *,
        run_id: UUID | str,
        log_updates: bool = False,
        log_custom: bool = False,
        known: Known | None = None,
        is_cancelled: Callable[[], bool] = lambda: False,
    ) -> None:
        known = known or Known()
        self._emit = emitter.emit
        self._count = emitter.count
        self._run_id = run_id
        self._log_updates = log_updates
        self._log_custom = log_custom
        self._closed = False
        self._meter = LLMMeter(emitter.count)
        self._tools = ToolTranslation(emitter.emit, emitter.count, self._result_told, known.calls)
        # By the identity of the metadata that all chunks of a call share, and by the id LangChain gives it.
        self._streams: dict[int | str | None, _Stream] = {}
        self._by_call: dict[UUID, _Stream] = {}
        self._logged = set(known.messages)
        self._ends_with_text = known.ends_with_text
        self.ends_broken = False  # the last message is nothing but calls that cannot be read
        relay = CallbackRelay(self, is_cancelled)
        self.callbacks: list[BaseCallbackHandler] = [relay]
        self.errors = relay.errors  # what broke so far
        self.questions: list[dict[str, Any]] = []  # [{id, value}] that the graph asked the user

    @property
    def last_activity(self) -> float:
        """Monotonic time since which the quietest open LLM call has given nothing; for the idle limit."""
        return self._meter.last_activity

    @property
    def llm_calls_open(self) -> int:
        """LLM calls in progress."""
        return self._meter.open_calls

    @property
    def tools_open(self) -> dict[str, float]:
        """Ids of the tool calls whose tools run now, with the monotonic time each began."""
        return self._tools.open

    @property
    def unanswered(self) -> bool:
        """Whether a message holds a call that has no result."""
        return self._tools.unanswered

    def tool_name(self, call_id: str) -> str:
        """The name of the tool of a call."""
        return self._tools.name(call_id)

    # What was there before

    def recover(self, namespace: tuple[str, ...], messages: Iterable[BaseMessage]) -> None:
        """What a lost execution left in the checkpoint of this turn: told now, as far as the log lacks it."""
        for message in messages:
            if isinstance(message, ToolMessage):
                self._tools.recover(message)
            elif isinstance(message, AIMessage):
                self._feed_whole(namespace, None, message)

    # Chunks

    def feed(self, namespace: tuple[str, ...], mode: str, payload: Any) -> None:
        """Take one chunk of the stream."""
        if self._closed:
            return
        if mode == "messages":
            message, metadata = payload
            stream = self._streams.get(getattr(message, "id", None)) or self._streams.get(id(metadata))
            if stream is not None:
                self._feed_stream(stream, namespace, message)
            elif isinstance(message, ToolMessage):
                self._tools.result(namespace, metadata.get("langgraph_node"), message)
            elif isinstance(message, AIMessage):
                self._feed_whole(namespace, metadata.get("langgraph_node"), message)
        elif mode == "tools":
            self._tools.feed(namespace, payload)
        elif mode == "updates":
            self._feed_updates(namespace, payload)
        elif mode == "custom" and self._log_custom:
            self._emit(EventType.GRAPH_CUSTOM, {"namespace": list(namespace), "data": to_json(payload)})

    def _feed_stream(self, stream: _Stream, namespace: tuple[str, ...], message: BaseMessage) -> None:
        if not stream.fed:
            stream.id = clean(message.id or str(stream.call.id))
            stream.namespace = namespace
        stream.fed += 1
        content = message.content
        if text := content if type(content) is str else text_of(content):
            self._tell(stream, stream.cleaning.feed(text))
        if stream.call.ended and stream.done:
            self._end_stream(stream)

    def _feed_whole(self, namespace: tuple[str, ...], node: str | None, message: AIMessage) -> None:
        """A message that a node made by itself, or of an LLM call whose chunks are not streamed."""
        message_id = clean(message.id or "")
        if not message_id or message_id in self._logged:
            return
        self._start(message_id, node, namespace)
        if text := clean(text_of(message.content)):
            self._emit(EventType.MESSAGE_DELTA, {"message": message_id, "text": text})
        self._complete(message_id, text, _wire_calls(message, message_id), usage=None)

    def _feed_updates(self, namespace: tuple[str, ...], update: Any) -> None:
        if not isinstance(update, dict):
            return
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
                self.questions.append({"id": interrupt.id, "value": to_json(interrupt.value)})

    # Messages

    def _tell(self, stream: _Stream, text: str) -> None:
        if not text:
            return
        if not stream.opened:
            self._open(stream)
        stream.pieces.append(text)
        self._emit(EventType.MESSAGE_DELTA, {"message": stream.id, "text": text})

    def _open(self, stream: _Stream) -> None:
        stream.opened = True
        self._start(stream.id, stream.metadata.get("langgraph_node"), stream.namespace)

    def _end_stream(self, stream: _Stream) -> None:
        """The message is as long as it gets: complete it, or if the call broke off, say so."""
        self._forget(stream)
        self._tell(stream, stream.cleaning.end())
        call, text = stream.call, "".join(stream.pieces)
        if call.failed or not call.ended:
            if stream.opened:
                self._complete(stream.id, text, [], usage=None, status="interrupted")
            return
        if not stream.opened:
            self._open(stream)
        calls = _wire_calls(call.answer, stream.id) if call.answer is not None else []
        usage = {"input_tokens": call.usage.input, "output_tokens": call.usage.output} if call.usage else None
        self._complete(stream.id, text, calls, usage=usage)

    def _forget(self, stream: _Stream) -> None:
        self._by_call.pop(stream.call.id, None)
        for key in (_message_key(stream.call.id), id(stream.metadata)):
            if self._streams.get(key) is stream:
                del self._streams[key]

    def _start(self, message_id: str, node: str | None, namespace: tuple[str, ...]) -> None:
        data = {"message": message_id, "role": "assistant", "node": node, "namespace": list(namespace)}
        self._emit(EventType.MESSAGE_STARTED, data)

    def _complete(
        self,
        message_id: str,
        text: str,
        calls: list[dict[str, Any]],
        *,
        usage: dict[str, int] | None,
        status: str = "complete",
    ) -> None:
        self._logged.add(message_id)
        self._tools.ask(message_id, calls)
        data = {"message": message_id, "role": "assistant", "text": text, "tool_calls": calls, "usage": usage}
        self._emit(EventType.MESSAGE_COMPLETED, {**data, "status": status})
        self._count(message_count=1)
        self._ends_with_text = bool(text.strip())  # until a call of it gets its result
        self.ends_broken = not self._ends_with_text and any("error" in call for call in calls)

    def _result_told(self) -> None:
        self._ends_with_text = False

    # Callbacks

    def llm_started(self, run_id: UUID, input_estimate: int, metadata: dict[str, Any] | None) -> None:
        if self._closed:
            return
        call = self._meter.start(run_id, input_estimate)
        if metadata is not None:
            stream = _Stream(call, metadata)
            self._by_call[run_id] = self._streams[_message_key(run_id)] = stream
            self._streams.setdefault(id(metadata), stream)

    def llm_chunk(self, run_id: UUID, characters: int, usage: Any) -> None:
        if (call := self._meter.get(run_id)) is not None:
            self._meter.chunk(call, characters, usage)

    def llm_ended(self, run_id: UUID, result: LLMResult) -> None:
        if (call := self._meter.get(run_id)) is not None:
            self._meter.end(call, result)
            self._call_ended(run_id)

    def llm_failed(self, run_id: UUID) -> None:
        if (call := self._meter.get(run_id)) is not None:
            self._meter.fail(call)
            self._call_ended(run_id)

    def _call_ended(self, run_id: UUID) -> None:
        stream = self._by_call.get(run_id)
        if stream is None:
            return
        if stream.done:
            self._end_stream(stream)
        elif stream.call.failed and not stream.call.chunks:
            self._forget(stream)

    def tool_began(self, run_id: UUID, call_id: str, node: str | None) -> None:
        self._tools.began(run_id, call_id, node)

    def tool_returned(self, run_id: UUID, output: Any) -> None:
        self._tools.ended(run_id, output, None)

    def tool_raised(self, run_id: UUID, error: BaseException, cancelled: bool) -> None:
        self._tools.ended(run_id, None, error, cancelled=cancelled)

    # The end

    def leave_open(self) -> None:
        """The graph was broken off and may be gone on with: what has begun is told, nothing is ended."""
        self._tools.tell_begun()

    def close(self, status: RunStatus) -> None:
        """No chunk comes any more: end what is open, as the run's ``status`` wants it.

        What had arrived and was not told yet is told now, so a result is not taken for an unknown effect.
        A waiting run keeps its open tool calls; an execution to come will end them. A turn that did not
        complete and does not end with an assistant's text gets a note, so that log, page and model see the
        same words. A second call does nothing.
        """
        if not self._closed:
            self._closed = True
            for stream in list(self._by_call.values()):
                if stream.fed:
                    self._tell_rest(stream)
                    self._end_stream(stream)
            self._meter.close()
        if status == RunStatus.WAITING:
            return
        self._tools.close()
        if status in NOTES and not self._ends_with_text and note_id(self._run_id) not in self._logged:
            message_id = note_id(self._run_id)  # without a delta: it is no token of the model's
            self._start(message_id, None, ())
            self._complete(message_id, NOTES[status], [], usage=None, status="interrupted")

    def _tell_rest(self, stream: _Stream) -> None:
        """Of a call that has ended well: what its queued chunks would have told."""
        if stream.call.answer is None:
            return
        whole, told = clean(text_of(stream.call.answer.content)), "".join(stream.pieces)
        if whole.startswith(told):
            stream.cleaning = CleanStream()
            self._tell(stream, whole[len(told) :])


def _message_key(run_id: UUID) -> str:
    """The id that LangChain gives a message whose provider gives none."""
    return f"lc_run--{run_id}"


def _wire_calls(message: AIMessage, message_id: str) -> list[dict[str, Any]]:
    """The calls of a whole message; one whose arguments are no JSON object has none, and an ``error``."""
    calls: list[dict[str, Any]] = []
    for call in (*message.tool_calls, *message.invalid_tool_calls):
        args = call["args"]
        wire = {
            "id": clean(call["id"] or f"{message_id}:{len(calls)}"),
            "name": truncate_to_fit(call["name"] or "", TOOL_NAME_LIMIT),
            "args": to_json(args) if isinstance(args, dict) else {},
        }
        if not isinstance(args, dict):
            wire["error"] = truncate(str(call.get("error") or "The arguments are not a JSON object."), 1000)
        calls.append(wire)
    return calls

"""Assistant messages into events: those of LLM calls as they are streamed, and those that a node made whole.

Callbacks tell when an LLM call began and how it ended. They run ahead of the chunks, which wait in a queue.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import LLMResult

from runs.foundation.limits import TOOL_NAME_LIMIT
from runs.foundation.values import CleanStream, clean, text_of, to_json, truncate, truncate_to_fit
from runs.states import Audience, EventType
from runs.translation.conversation import Conversation
from runs.translation.steps import GraphSteps
from runs.translation.usage import LLMCall, LLMMeter


@dataclass(slots=True, eq=False)
class _Stream:
    """The message of one LLM call, as far as it was told."""

    call: LLMCall
    metadata: dict[str, Any]
    is_work: bool  # a tool calls the model
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


class MessageTranslation:
    """The assistant messages of one execution. Used on the event loop.

    ``ask`` is called with the id of each complete message, the calls it holds, ``{id, name, args}`` each, and
    the task of the graph that made it.
    ``logged`` are the ids of messages that are in the log already.
    """

    def __init__(
        self,
        emit: Callable[[EventType, dict[str, Any]], None],
        count: Callable[..., None],
        ask: Callable[[str, list[dict[str, Any]], str | None], None],
        *,
        steps: GraphSteps,
        conversation: Conversation,
        logged: frozenset[str],
    ) -> None:
        self._emit = emit
        self._count = count
        self._ask = ask
        self._steps = steps
        self._conversation = conversation
        self._closed = False
        self.meter = LLMMeter(count)
        # By the identity of the metadata that all chunks of a call share, and by the id LangChain gives it.
        self._streams: dict[int | str | None, _Stream] = {}
        self._by_call: dict[UUID, _Stream] = {}
        self._logged = set(logged)
        self.ends_broken = False  # the last message is nothing but calls that cannot be read

    # Chunks

    def feed(self, namespace: tuple[str, ...], message: BaseMessage, metadata: dict[str, Any]) -> None:
        """A chunk of an LLM call that is streamed, or a message that a node made whole."""
        stream = self._streams.get(getattr(message, "id", None)) or self._streams.get(id(metadata))
        if stream is not None:
            self._feed_stream(stream, namespace, message)
        elif isinstance(message, AIMessage):
            node, task = metadata.get("langgraph_node"), _task(metadata)
            self.feed_whole(namespace, node, message, task)

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

    def feed_whole(
        self, namespace: tuple[str, ...], node: str | None, message: AIMessage, task: str | None = None
    ) -> None:
        """A message that a node made by itself, or of an LLM call whose chunks are not streamed."""
        message_id = clean(message.id or "")
        if not message_id or message_id in self._logged:
            return
        is_work = self._steps.is_in_tool(None, task)
        self.start(message_id, node, namespace, task, is_work=is_work)
        if text := clean(text_of(message.content)):
            self._emit(EventType.MESSAGE_DELTA, {"message": message_id, "text": text})
        calls = _wire_calls(message, message_id)
        self.complete(message_id, text, calls, usage=None, task=task, is_work=is_work)

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
        node, task = stream.metadata.get("langgraph_node"), _task(stream.metadata)
        self.start(stream.id, node, stream.namespace, task, is_work=stream.is_work)

    def _end_stream(self, stream: _Stream) -> None:
        """The message is as long as it gets: complete it, or if the call broke off, say so."""
        self._forget(stream)
        self._tell(stream, stream.cleaning.end())
        call, text = stream.call, "".join(stream.pieces)
        task = _task(stream.metadata)
        if call.failed or not call.ended:
            if stream.opened:
                self.complete(
                    stream.id, text, [], usage=None, status="interrupted", task=task, is_work=stream.is_work
                )
            return
        if not stream.opened:
            self._open(stream)
        calls = _wire_calls(call.answer, stream.id) if call.answer is not None else []
        usage = {"input_tokens": call.usage.input, "output_tokens": call.usage.output} if call.usage else None
        self.complete(stream.id, text, calls, usage=usage, task=task, is_work=stream.is_work)

    def _forget(self, stream: _Stream) -> None:
        self._by_call.pop(stream.call.id, None)
        for key in (_message_key(stream.call.id), id(stream.metadata)):
            if self._streams.get(key) is stream:
                del self._streams[key]

    def start(
        self,
        message_id: str,
        node: str | None,
        namespace: tuple[str, ...],
        task: str | None = None,
        *,
        is_work: bool = False,
    ) -> None:
        self._conversation.begin(task)
        data = {"message": message_id, "role": "assistant", "node": node, "namespace": list(namespace)}
        data["audience"] = Audience.WORK if is_work else Audience.ANSWER
        self._emit(EventType.MESSAGE_STARTED, data | {"task": root_task(task)})

    def complete(
        self,
        message_id: str,
        text: str,
        calls: list[dict[str, Any]],
        *,
        usage: dict[str, int] | None,
        status: str = "complete",
        task: str | None = None,
        is_work: bool = False,
    ) -> None:
        self._logged.add(message_id)
        self._ask(message_id, calls, task)
        data = {"message": message_id, "role": "assistant", "text": text, "tool_calls": calls, "usage": usage}
        self._emit(EventType.MESSAGE_COMPLETED, {**data, "status": status})
        self._count(message_count=1)
        if is_work:
            return
        self._conversation.tell(message_id, text, root_task(task))
        self.ends_broken = not text.strip() and any("error" in call for call in calls)

    # Callbacks

    def llm_started(
        self,
        run_id: UUID,
        input_estimate: int,
        metadata: dict[str, Any] | None,
        parent: UUID | None = None,
    ) -> None:
        """An LLM call begins. ``metadata`` is the dictionary its chunks come with, None if none will."""
        if self._closed:
            return
        call = self.meter.start(run_id, input_estimate)
        if metadata is not None:
            stream = _Stream(call, metadata, self._steps.is_in_tool(parent, _task(metadata)))
            self._by_call[run_id] = self._streams[_message_key(run_id)] = stream
            self._streams.setdefault(id(metadata), stream)

    def llm_chunk(self, run_id: UUID, characters: int, usage: Any) -> None:
        """A chunk of an LLM call was handed over, with the provider's ``usage_metadata`` or None."""
        if (call := self.meter.open.get(run_id)) is not None:
            self.meter.chunk(call, characters, usage)

    def llm_ended(self, run_id: UUID, result: LLMResult) -> None:
        """An LLM call has ended well."""
        if (call := self.meter.open.get(run_id)) is not None:
            self.meter.end(call, result)
            self._call_ended(run_id)

    def llm_failed(self, run_id: UUID) -> None:
        """An LLM call broke off."""
        if (call := self.meter.open.get(run_id)) is not None:
            self.meter.fail(call)
            self._call_ended(run_id)

    def _call_ended(self, run_id: UUID) -> None:
        stream = self._by_call.get(run_id)
        if stream is None:
            return
        if stream.done:
            self._end_stream(stream)
        elif stream.call.failed and not stream.call.chunks:
            self._forget(stream)

    # The end

    def has_logged(self, message_id: str) -> bool:
        """Whether this message is complete in the log."""
        return message_id in self._logged

    def close(self) -> None:
        """No chunk comes any more: end what is open."""
        self._closed = True
        for stream in list(self._by_call.values()):
            if stream.fed:
                self._tell_rest(stream)
                self._end_stream(stream)
        self.meter.close()

    def _tell_rest(self, stream: _Stream) -> None:
        """Of a call that has ended well: what its queued chunks would have told."""
        if stream.call.answer is None:
            return
        whole, told = clean(text_of(stream.call.answer.content)), "".join(stream.pieces)
        if whole.startswith(told):
            stream.cleaning = CleanStream()
            self._tell(stream, whole[len(told) :])


def _task(metadata: dict[str, Any]) -> str | None:
    """The task of the graph that made a message, by the namespace of its checkpoints."""
    return metadata.get("langgraph_checkpoint_ns")


def root_task(task: str | None) -> str | None:
    """The root graph's task in which this one runs, by the namespace of its checkpoints."""
    return task.partition("|")[0] if task else None


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

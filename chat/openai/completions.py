"""The answer of a run as OpenAI's chat completion: whole, or as a stream of chunks.

An agent may write several messages in one turn, before and after its tool calls. A client gets them as one
text with an empty line between them, one after the other, in both forms. What models say on the way, to a
tool, say, is no part of it; but a stream may have told what later turns out to be such work. The events of
tools come on chunks of their own. These have an empty delta and the event in the field ``turnkeeper``, which
clients of OpenAI ignore.
"""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from typing import Any

from chat.access.open_connections import EndReason
from chat.access.run_connections import RunConnection
from chat.api.streams import KEEP_ALIVE
from chat.openai.errors import RunFailed
from runs.errors import EngineError
from runs.live.follow import Event
from runs.operations import Data
from runs.states import Audience, ErrorCode, EventType

_TOOL_EVENTS = frozenset(type for type in EventType if type.startswith("tool."))
_STATUS_OF_FAILURE = {
    ErrorCode.PROVIDER: HTTPStatus.BAD_GATEWAY,
    ErrorCode.TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
}


@dataclass(slots=True)
class _Answer:
    """One message, as far as it is known and was told."""

    text: str = ""
    told: int = 0  # characters that the stream has told
    has_begun: bool = False
    is_complete: bool = False
    is_work: bool = False

    def become(self, text: str) -> None:
        """This is the whole text. What was told cannot be taken back."""
        if not text.startswith(self.text[: self.told]):
            self.told = len(text)
        self.text = text

    def take(self) -> str:
        """What the stream has not told."""
        more = self.text[self.told :]
        self.told += len(more)
        return more


class Completion:
    """What one run answers to the request that started it; ``model`` is the agent."""

    def __init__(self, connection: RunConnection, run: Data, model: str) -> None:
        self.run = run
        self._connection = connection
        self._model = model
        self._answers: dict[str, _Answer] = {}  # by message, in the order of their beginnings
        self._has_told = False  # the stream has told some text
        self._statistics: Data | None = None

    async def whole(self) -> Data:
        """The whole answer, once it is there. Raises RunFailed."""
        try:
            async with aclosing(self._connection.events()) as events:
                async for event in events:
                    if event is not None:
                        self._take(event)
            self._check_end()
        except EngineError as error:
            raise self._failed(error) from None
        finally:
            self._connection.close()
        message = {"role": "assistant", "content": self.content, "refusal": None}
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
        return self._shape("chat.completion", [choice]) | {"usage": self._usage()}

    @property
    def content(self) -> str:
        """All answers so far."""
        texts = [answer.text for answer in self._answers.values() if not answer.is_work and answer.text]
        return "\n\n".join(texts)

    async def chunks(self, *, include_usage: bool) -> AsyncIterator[str]:
        """The body of an event stream. An answer that fails ends with an error in place of ``[DONE]``."""
        usage: Data = {"usage": None} if include_usage else {}
        try:
            yield self._chunk({"role": "assistant", "content": ""}, usage)
            async with aclosing(self._connection.events()) as events:
                async for event in events:
                    if event is None:
                        yield KEEP_ALIVE
                    elif event.type in _TOOL_EVENTS:
                        yield self._chunk({}, usage | {"turnkeeper": {"event": json.loads(event.json)}})
                    elif text := self._take(event):
                        yield self._chunk({"content": text}, usage)
            self._check_end()
            yield self._chunk({}, usage, finish_reason="stop")
            if include_usage:
                yield _frame(self._shape("chat.completion.chunk", []) | {"usage": self._usage()})
            yield "data: [DONE]\n\n"
        except EngineError as error:  # the headers are out: the stream itself has to say it
            yield _frame(self._failed(error).body())
        finally:
            self._connection.close()

    # Folding

    def _take(self, event: Event) -> str:
        """What is new of the text. Raises RunFailed when there will be no more of it."""
        match event.type:
            case (
                EventType.MESSAGE_STARTED
                | EventType.MESSAGE_DELTA
                | EventType.MESSAGE_COMPLETED
                | EventType.MESSAGE_CHANGED
            ):
                return self._say(event.type, json.loads(event.json)["data"])
            case EventType.RUN_COMPLETED:
                self._statistics = json.loads(event.json)["data"]["statistics"]
            case EventType.RUN_FAILED:
                error = json.loads(event.json)["data"]["error"]
                status = _STATUS_OF_FAILURE.get(error["code"], HTTPStatus.INTERNAL_SERVER_ERROR)
                raise RunFailed(self.run, status, error["code"], error["message"])
            case EventType.RUN_CANCELLED:
                raise RunFailed(self.run, HTTPStatus.CONFLICT, "run_cancelled", "The run was cancelled.")
            case EventType.RUN_INTERRUPTED:
                raise RunFailed(
                    self.run,
                    HTTPStatus.SERVICE_UNAVAILABLE,
                    "run_interrupted",
                    f"The run was interrupted. POST /api/runs/{self.run['id']}/resume/ goes on with it.",
                )
            case EventType.RUN_WAITING:
                # This protocol has no questions. The question may be answered over REST, so the run goes on.
                self._connection.detach()
                raise RunFailed(
                    self.run,
                    HTTPStatus.CONFLICT,
                    "run_waiting",
                    f"The run waits for an answer. POST /api/runs/{self.run['id']}/answer/ gives it.",
                )
        return ""

    def _say(self, type: str, data: Data) -> str:
        answer = self._answers.setdefault(data["message"], _Answer())
        match type:
            case EventType.MESSAGE_STARTED:
                answer.is_work = data.get("audience") == Audience.WORK
            case EventType.MESSAGE_DELTA:
                answer.text += data["text"]
            case EventType.MESSAGE_COMPLETED:  # what was not streamed comes now
                answer.become(data["text"])
                answer.is_complete = True
            case EventType.MESSAGE_CHANGED:
                answer.become(data.get("text", answer.text))
                answer.is_work |= data.get("audience") == Audience.WORK
        return self._untold()

    def _untold(self) -> str:
        """What can be told now. A message that has begun waits until the one before it is complete."""
        told: list[str] = []
        for answer in self._answers.values():
            if not answer.is_work:
                if more := answer.take():
                    told.append(more if answer.has_begun or not self._has_told else f"\n\n{more}")
                    answer.has_begun = self._has_told = True
                if not answer.is_complete:
                    break
        return "".join(told)

    def _check_end(self) -> None:
        """Raise RunFailed unless the run has completed."""
        if self._statistics is not None:
            return
        match self._connection.end_reason:
            case EndReason.LOGIN:
                status, code, why = (
                    HTTPStatus.UNAUTHORIZED,
                    "invalid_api_key",
                    "This token is not valid any more.",
                )
            case EndReason.LEAVING:
                status, code = HTTPStatus.SERVICE_UNAVAILABLE, "unavailable"
                why = f"The server is leaving. GET /api/runs/{self.run['id']}/ tells what became of the run."
            case None:
                status, code, why = HTTPStatus.NOT_FOUND, "not_found", "The session was deleted."
        raise RunFailed(self.run, status, code, why)

    def _failed(self, error: EngineError) -> RunFailed:
        if isinstance(error, RunFailed):
            return error
        return RunFailed(self.run, error.status, error.code, error.message)

    # Shapes

    def _shape(self, kind: str, choices: list[Data]) -> Data:
        return {
            "id": f"chatcmpl-{self.run['id']}",
            "object": kind,
            "created": int(datetime.fromisoformat(self.run["created_at"]).timestamp()),
            "model": self._model,
            "choices": choices,
        }

    def _chunk(self, delta: Data, fields: Data, finish_reason: str | None = None) -> str:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return _frame(self._shape("chat.completion.chunk", [choice]) | fields)

    def _usage(self) -> Data | None:
        """None when the model's provider has not told."""
        numbers = self._statistics or {}
        prompt, completion = numbers.get("input_tokens"), numbers.get("output_tokens")
        if prompt is None or completion is None:
            return None
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "estimated": numbers["tokens_estimated"],
        }


def _frame(data: Any) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"

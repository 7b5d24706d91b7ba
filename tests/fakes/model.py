"""The in-process twin of the scripted provider: the same scripts and ledger, without HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, convert_to_openai_messages
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import ConfigDict, Field

from tests.provider.ledger import Call, Ledger
from tests.provider.script import (
    CallPiece,
    Disconnect,
    Failure,
    Hold,
    Pause,
    Round,
    Script,
    Silence,
    Step,
    Text,
)
from tests.provider.strict import fault_in


class ProviderFailure(Exception):
    """What a scripted failure, a broken connection or a refused history raises in process."""

    def __init__(self, message: str, status_code: int | None = None) -> None:
        super().__init__(message)
        self.status_code = status_code


class StreamingModel(BaseChatModel):
    """A chat model that only streams. Bound tools are offered to nobody."""

    model_config = ConfigDict(arbitrary_types_allowed=True)

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return generate_from_stream(self._stream(messages, stop, run_manager, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages, stop, run_manager, **kwargs))


class ScriptedModel(StreamingModel):
    """A chat model that says what its script says, at the speed the script asks for.

    With ``strict`` it refuses a history that is not well-formed, as the provider does. Usage styles work
    as over HTTP. The script decides what is called.
    """

    script: Script = Field(default_factory=Script)
    ledger: Ledger = Field(default_factory=Ledger)
    strict: bool = True
    strict_user_after_tool: bool = False

    def __init__(self, *rounds: Round, **fields: Any) -> None:
        super().__init__(**({"script": Script(*rounds)} | fields))

    @property
    def _llm_type(self) -> str:
        return "scripted"

    @property
    def calls(self) -> list[Call]:
        return self.ledger.calls

    def _open(self, messages: list[BaseMessage]) -> tuple[Call, Round]:
        history = convert_to_openai_messages(messages)
        assert isinstance(history, list)
        call = self.ledger.open(history, stream=True)
        fault = fault_in(history, user_after_tool=not self.strict_user_after_tool) if self.strict else None
        if fault:
            self.ledger.end(call, "refused")
            raise ProviderFailure(fault, 400)
        return call, self.script.next(history)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        call, played = self._open(messages)
        try:
            for step in played.steps:
                match step:
                    case Pause(seconds):
                        await asyncio.sleep(seconds)
                    case Hold(name):
                        gate = self.script.gate(name)
                        gate.arrive()
                        await gate.passed()
                    case Silence():
                        await asyncio.Event().wait()
                    case _:
                        _raise_failure(step)
                        await asyncio.sleep(getattr(step, "delay", 0))
                chunk = _next_chunk(step, call, played)
                if chunk is not None:
                    self.ledger.sent(call)
                    if run_manager is not None:
                        await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
            last = _last_chunk(call, played)
            if run_manager is not None:
                await run_manager.on_llm_new_token("", chunk=last)
            self.ledger.end(call, "completed", played)
            yield last
        except ProviderFailure:
            self.ledger.end(call, "failed", played)
            raise
        finally:
            self.ledger.end(call, "closed", played)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        call, played = self._open(messages)
        try:
            for step in played.steps:
                match step:
                    case Pause(seconds):
                        time.sleep(seconds)
                    case Hold(name):
                        gate = self.script.gate(name)
                        gate.arrive()
                        gate.wait_opened()
                    case Silence():
                        self.script.gate("silence").wait_opened()  # a thread must not outlive its test
                    case _:
                        _raise_failure(step)
                        time.sleep(getattr(step, "delay", 0))
                chunk = _next_chunk(step, call, played)
                if chunk is not None:
                    self.ledger.sent(call)
                    if run_manager is not None:
                        run_manager.on_llm_new_token(chunk.text, chunk=chunk)
                    yield chunk
            self.ledger.end(call, "completed", played)
            yield _last_chunk(call, played)
        except ProviderFailure:
            self.ledger.end(call, "failed", played)
            raise
        finally:
            self.ledger.end(call, "closed", played)


def _raise_failure(step: Step) -> None:
    if isinstance(step, Failure):
        raise ProviderFailure(step.message, step.status)
    if isinstance(step, Disconnect):
        raise ProviderFailure("The connection broke off.")


def _next_chunk(step: Step, call: Call, played: Round) -> ChatGenerationChunk | None:
    if isinstance(step, Text):
        message = AIMessageChunk(content=step.text)
    elif isinstance(step, CallPiece):
        piece = tool_call_chunk(name=step.name, args=step.arguments, id=step.id, index=step.index)
        message = AIMessageChunk(content="", tool_call_chunks=[piece])
    else:
        return None
    if played.style in ("cumulative", "delta"):
        message.usage_metadata = _usage_so_far(call, played)
    return ChatGenerationChunk(message=message)


def _last_chunk(call: Call, played: Round) -> ChatGenerationChunk:
    usage = call.usage(played)
    reported = _usage(usage.prompt, usage.completion, usage.cached, usage.reasoning)
    message = AIMessageChunk(content="", chunk_position="last")
    message.usage_metadata = reported if played.style == "last" else None
    message.response_metadata = {"finish_reason": "stop", "model_name": "scripted"}
    return ChatGenerationChunk(message=message, generation_info={"finish_reason": "stop"})


def _usage_so_far(call: Call, played: Round) -> UsageMetadata:
    """The usage on the chunk that is sent next."""
    usage = call.usage(played)
    so_far, before = (usage.completion * chunks // played.chunks for chunks in (call.chunks + 1, call.chunks))
    if played.style == "cumulative":
        return _usage(usage.prompt, so_far, usage.cached, usage.reasoning)
    first = call.chunks == 0
    return _usage(usage.prompt if first else 0, so_far - before, usage.cached if first else 0, 0)


def _usage(prompt: int, completion: int, cached: int, reasoning: int) -> UsageMetadata:
    return {
        "input_tokens": prompt,
        "output_tokens": completion,
        "total_tokens": prompt + completion,
        "input_token_details": {"cache_read": cached},
        "output_token_details": {"reasoning": reasoning},
    }

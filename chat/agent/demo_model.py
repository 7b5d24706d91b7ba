"""The built-in model: works offline and without a key, and shows what the product does.

It understands a few words. What it says depends on the messages alone.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.language_models.chat_models import agenerate_from_stream, generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable

_TEXTS = Path(__file__).parent / "demo"
HELP = (_TEXTS / "help.md").read_text(encoding="utf-8")
STORY = (_TEXTS / "story.md").read_text(encoding="utf-8")  # some 540 words; {about} is its subject
SUBJECT = "a small grey bird that sat on the railing and would not leave"

_MAX_WISH = 1_000  # characters that are read of a message; the expressions below are slow on hostile text
_ARGUMENT_PIECE = 8  # characters of a call's arguments in one chunk


@dataclass(frozen=True, slots=True)
class _Call:
    """A tool call the model decides on."""

    tool: str
    arguments: dict[str, Any]


class DemoModel(BaseChatModel):
    """Streams at a human speed and picks tools by what the user writes."""

    words_per_second: float = 25

    @property
    def _llm_type(self) -> str:
        return "demo"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        """The same model, with these tools to choose from."""
        return self.bind(offered=[tool.name for tool in tools], **kwargs)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for message in _reply(messages, kwargs.get("offered", ())):
            await asyncio.sleep(1 / self.words_per_second)
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        for message in _reply(messages, kwargs.get("offered", ())):
            time.sleep(1 / self.words_per_second)
            chunk = ChatGenerationChunk(message=message)
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk

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


def _reply(messages: Sequence[BaseMessage], offered: Sequence[str]) -> Iterator[AIMessageChunk]:
    """The chunks of the answer: words, then the pieces of tool calls, then the usage."""
    asked = max((i for i, message in enumerate(messages) if isinstance(message, HumanMessage)), default=-1)
    results = [message for message in messages[asked + 1 :] if isinstance(message, ToolMessage)]
    wish = str(messages[asked].text)[:_MAX_WISH] if asked >= 0 else ""
    calls = [] if results else [call for call in _calls(wish) if call.tool in offered]
    if results:
        text = _report(results)
    elif calls:
        text = "Let me do that." if len(calls) == 1 else f"Let me do these {len(calls)} things at once."
    else:
        text = _talk(wish)
    words = re.findall(r"\S+\s*|\s+", text)
    for word in words:
        yield AIMessageChunk(content=word)
    pieces = 0
    for index, call in enumerate(calls):
        for chunk in _spelled(index, call, turn=asked):
            pieces += 1
            yield chunk
    yield AIMessageChunk(
        content="",
        chunk_position="last",
        usage_metadata=_usage(messages, len(words) + pieces),
        response_metadata={"model_name": "demo", "finish_reason": "tool_calls" if calls else "stop"},
    )


def _spelled(index: int, call: _Call, turn: int) -> Iterator[AIMessageChunk]:
    """The call piece by piece, as a provider streams it. The id is new in every turn of a session."""
    call_id = f"demo_{turn}_{index}_{call.tool}"
    yield AIMessageChunk(
        content="", tool_call_chunks=[tool_call_chunk(name=call.tool, args="", id=call_id, index=index)]
    )
    arguments = json.dumps(call.arguments)
    for start in range(0, len(arguments), _ARGUMENT_PIECE):
        piece = tool_call_chunk(args=arguments[start : start + _ARGUMENT_PIECE], index=index)
        yield AIMessageChunk(content="", tool_call_chunks=[piece])


def _usage(messages: Sequence[BaseMessage], output: int) -> UsageMetadata:
    """The demo model's tokens are words."""
    read = sum(len(str(message.text).split()) for message in messages)
    return {"input_tokens": read, "output_tokens": output, "total_tokens": read + output}


# What it understands

_DATE = re.compile(r"\d{4}-\d\d?-\d\d?")
_SPOKEN = (
    (re.compile(r"(?<=\d)\s+(?:times|multiplied by|x)\s+(?=[\d(-])"), " * "),
    (re.compile(r"(?<=\d)\s+plus\s+(?=[\d(-])"), " + "),
    (re.compile(r"(?<=\d)\s+minus\s+(?=[\d(-])"), " - "),
    (re.compile(r"(?<=\d)\s+divided by\s+(?=[\d(-])"), " / "),
)
_OPEN, _CLOSE, _DIGITS = r"(?:sqrt|[(\s-]){0,12}", r"[\s)]{0,12}", r"\d[\d.,]*"
_SIGN = r"(?:\*\*|//|[-+*/%^\u00d7\u00f7])"
_ARITHMETIC = re.compile(f"{_OPEN}{_DIGITS}{_CLOSE}(?:{_SIGN}{_OPEN}{_DIGITS}{_CLOSE})+")
_ROOT = re.compile(r"sqrt\s*\(\s*\d[\d.]*\s*\)")
_WAIT = re.compile(
    r"\b(?:wait|pause|sleep)\b(?:\D{0,20}?(\d+(?:\.\d+)?)\s*(m(?:in(?:ute)?s?)?\b)?)?", re.IGNORECASE
)
_PRIMES = re.compile(r"\bprimes?\b(?:\D{0,40}?(\d[\d,. ]*))?|\bblocking\b", re.IGNORECASE)
_NOTE = re.compile(r"\bask me\b|\bnote\b(?:\s*(?:that|down|:))*\s*(.*)", re.IGNORECASE | re.DOTALL)
_STORY = re.compile(r"\b(?:story|tale)\b(?:\s+(?:about|of)\s+(?P<about>[^.!?\n]{1,60}))?", re.IGNORECASE)


def _calls(wish: str) -> list[_Call]:
    """The tool calls that a message asks for."""
    found = [call for understand in (_note, _waiting, _primes, _sums) for call in understand(wish)]
    return found[:8]


def _note(wish: str) -> Iterator[_Call]:
    match = _NOTE.search(wish)
    if match:
        yield _Call("keep_note", {"text": (match[1] or wish).strip()[:500] or "a note without words"})


def _waiting(wish: str) -> Iterator[_Call]:
    for match in _WAIT.finditer(wish):
        seconds = min(float(match[1] or 5) * (60 if match[2] else 1), 100.0)
        yield _Call("wait", {"seconds": int(seconds) if seconds.is_integer() else seconds})


def _primes(wish: str) -> Iterator[_Call]:
    match = _PRIMES.search(wish)
    if match:
        digits = re.sub(r"\D", "", match[1] or "")[:9]
        yield _Call("count_primes", {"limit": min(max(int(digits or 500_000), 2), 2_000_000)})


def _sums(wish: str) -> Iterator[_Call]:
    if _NOTE.search(wish):
        return  # the words of a note are no order
    spoken = _DATE.sub(" ", wish)
    for pattern, sign in _SPOKEN:
        spoken = pattern.sub(sign, spoken)
    for pattern in (_ARITHMETIC, _ROOT):
        for match in pattern.finditer(spoken):
            yield _Call("calculate", {"expression": match[0].strip(" .,")[:200]})
        spoken = pattern.sub(" ", spoken)


# What it says


def _talk(wish: str) -> str:
    match = _STORY.search(wish)
    if match:
        about = (match["about"] or "").strip(" ,;:")
        return STORY.replace("{about}", about or SUBJECT)
    greeting = (
        "Hello. "
        if re.match(r"\W*(?:hi|hello|hey|good (?:morning|evening|day))\b", wish, re.IGNORECASE)
        else ""
    )
    return greeting + HELP


def _report(results: Sequence[ToolMessage]) -> str:
    """What came of the calls."""
    sentences = [_sentence(result) for result in results]
    if len(sentences) == 1:
        return sentences[0]
    return "Here is what came of it:\n\n" + "\n".join(f"- {sentence}" for sentence in sentences)


def _sentence(result: ToolMessage) -> str:
    text = " ".join(str(result.text).split())[:500]
    if result.status == "error":
        return f"`{result.name}` did **not** work: {text}"
    phrase: Callable[[str], str] = _PHRASES.get(
        result.name or "", lambda text: f"`{result.name}` says: {text}"
    )
    return phrase(text)


_PHRASES: dict[str, Callable[[str], str]] = {
    "calculate": lambda text: f"The result is **{text}**.",
    "wait": lambda text: f"Done. {text}",
    "count_primes": lambda text: f"{text} A thread of its own counted them.",
    "keep_note": lambda text: text,
}

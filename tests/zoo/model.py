"""A model without a memory: what it says follows from the history it is given, and from its plan.

So it can be resumed, retried and asked by two at once.
"""

import json
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk

from tests.fakes.history import openai_history
from tests.fakes.model import StreamingModel
from tests.provider.strict import fault_in
from tests.zoo.ledger import Ledger

# A tool's name, and what it is asked to do. Without a word it is not one of the zoo's tools.
Ask: TypeAlias = tuple[str, str | dict[str, Any]]

# The user's words that let a model go through its plan, and those that let it also ask the user.
GO = "go"
GO_AND_ASK = "go and ask"


class Refused(Exception):
    """The history is one that no provider takes."""


class PlannedModel(StreamingModel):
    """Says the first round of its plan that the history lacks since the user's last words, then its words.

    The tools of the zoo get a word and the id of their call. Each answer is streamed in pieces, with an entry
    in the ledger before each.
    """

    ledger: Ledger
    who: str = "outer"
    plan: Sequence[Sequence[Ask]] = ()
    words: str = ""

    @property
    def _llm_type(self) -> str:
        return "planned"

    def _pieces(self, messages: list[BaseMessage]) -> list[AIMessageChunk]:
        fault = fault_in(openai_history(messages), user_after_tool=False)
        if fault:
            raise Refused(fault)
        last = max(n for n, message in enumerate(messages) if isinstance(message, HumanMessage))
        answers = [message for message in messages[last:] if isinstance(message, AIMessage)]
        asked = {(call["name"], call["args"].get("word")) for answer in answers for call in answer.tool_calls}
        for asks in self._rounds(messages[last].text):
            if not all((name, what if isinstance(what, str) else None) in asked for name, what in asks):
                return [*_spoken(f"{self.who} thinks."), _asking(asks)]
        return _spoken(self.words or f"{self.who} is done.")

    def _rounds(self, text: str) -> list[Sequence[Ask]]:
        if text == GO_AND_ASK and self.who == "outer":
            return [*self.plan, [("ask", "may I")]]
        return list(self.plan) if text.startswith(GO) else []

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        pieces = self._pieces(messages)
        self.ledger.write("llm.start", self.who, word=_last_words(messages))
        for piece in pieces:
            self.ledger.write("llm.chunk", self.who, word=_last_words(messages))
            chunk = ChatGenerationChunk(message=piece)
            if run_manager is not None:
                run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
        self.ledger.write("llm.end", self.who, word=_last_words(messages))

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        pieces = self._pieces(messages)
        await self.ledger.awrite("llm.start", self.who, word=_last_words(messages))
        for piece in pieces:
            await self.ledger.awrite("llm.chunk", self.who, word=_last_words(messages))
            chunk = ChatGenerationChunk(message=piece)
            if run_manager is not None:
                await run_manager.on_llm_new_token(chunk.text, chunk=chunk)
            yield chunk
        await self.ledger.awrite("llm.end", self.who, word=_last_words(messages))


def _last_words(messages: Sequence[BaseMessage]) -> str:
    return next(message.text for message in reversed(messages) if isinstance(message, HumanMessage))


def _spoken(words: str) -> list[AIMessageChunk]:
    first, *others = words.split(" ")
    return [AIMessageChunk(content=first), *(AIMessageChunk(content=f" {word}") for word in others)]


def _asking(asks: Sequence[Ask]) -> AIMessageChunk:
    chunks = []
    for index, (name, what) in enumerate(asks):
        call_id = f"call_{uuid4().hex[:12]}"
        args = {"word": what, "call": call_id} if isinstance(what, str) else what
        chunks.append(tool_call_chunk(name=name, args=json.dumps(args), id=call_id, index=index))
    return AIMessageChunk(content="", tool_call_chunks=chunks)

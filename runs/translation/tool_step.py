"""The numbers that LangGraph gives to the questions and the inner graphs of a ToolNode's calls.

LangGraph numbers the questions of a step and the graphs that are called in it by the order in which they
come, and calls run side by side. So each call gets numbers of its own, and its answers reach no other call.
"""

import asyncio
import itertools
import threading
from collections.abc import Sequence
from contextvars import ContextVar
from dataclasses import replace

from langgraph._internal._scratchpad import PregelScratchpad
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt, _interrupt_id

from runs.translation.tools import Kept

# Of the numbers of the graphs that are called in a step, so many belong to each call.
_GRAPHS_OF_A_CALL = 1000
# No answer has this number.
_UNANSWERED = 1_000_000


class Step:
    """The calls that one execution of a ToolNode runs side by side, in the order of their message."""

    def __init__(self, calls: Sequence[str], scratchpad: PregelScratchpad | None, namespace: str) -> None:
        self.calls = calls
        self._scratchpad = scratchpad
        self._namespace = namespace
        self._answered = len(scratchpad.resume) if scratchpad is not None else 0
        self._begun: list[int] = []
        self._ended: set[int] = set()
        self._questions: dict[int, GraphInterrupt] = {}
        self._all_ended = asyncio.Event()
        self._lock = threading.Lock()

    def begin(self, call_id: str) -> int:
        """The place of a call among them. An id that repeats stands for each of its places in turn."""
        with self._lock:
            places = [place for place, one in enumerate(self.calls) if one == call_id]
            place = next((place for place in places if place not in self._begun), len(self.calls))
            self._begun.append(place)
            return place

    def numbers(self, place: int, earlier: Sequence[Kept | None]) -> "Numbers | None":
        """The numbers of the call at this place; ``earlier`` is what the calls before it have given."""
        if self._scratchpad is None:
            return None
        questions = 0
        for kept in earlier:
            if kept is None:
                # A call before it may still have questions to ask. So far none of its own was answered.
                return Numbers(self._scratchpad, _UNANSWERED, place, takes_answers=False)
            questions += kept.questions
        return Numbers(self._scratchpad, questions, place, takes_answers=True)

    def asked(self, place: int, question: GraphInterrupt) -> None:
        """The call at this place asks the user something."""
        self._questions[place] = question

    def end(self, place: int) -> None:
        """The call at this place goes no further."""
        self._ended.add(place)
        if len(self._ended) >= len(self.calls):
            self._all_ended.set()

    async def wait(self) -> None:
        """Until no call goes on. When one asks, LangGraph does not wait for the others."""
        await self._all_ended.wait()

    def first_question(self) -> GraphInterrupt | None:
        """The question of the first call that asks. The others ask after it has been answered."""
        if not self._questions:
            return None
        (interrupts,) = self._questions[min(self._questions)].args[:1] or ((),)
        return GraphInterrupt(tuple(map(self._numbered, interrupts)))

    def _numbered(self, interrupt: Interrupt) -> Interrupt:
        """With the id of the question that comes next, if it is one of the step and not of a graph in it.

        A call before it may have taken an answer since it was asked.
        """
        if self._scratchpad is None or interrupt.id != _interrupt_id(self._namespace, self._answered):
            return interrupt
        return replace(interrupt, id=_interrupt_id(self._namespace, len(self._scratchpad.resume)))


class Numbers:
    """What LangGraph counts for one call: its questions, and the graphs that it calls."""

    def __init__(
        self, shared: PregelScratchpad, first_question: int, place: int, *, takes_answers: bool
    ) -> None:
        questions = itertools.count(first_question)
        graphs = itertools.count(place * _GRAPHS_OF_A_CALL)
        self._first = first_question
        self._asked = 0
        self._shared = shared

        def next_question() -> int:
            self._asked += 1
            return next(questions)

        self.scratchpad = replace(
            shared,
            interrupt_counter=next_question,
            subgraph_counter=graphs.__next__,
            get_null_resume=shared.get_null_resume if takes_answers else _no_answer,
        )

    @property
    def answered(self) -> int:
        """How many questions of the call were answered."""
        return max(min(self._asked, len(self._shared.resume) - self._first), 0)


def _no_answer(consume: bool = False) -> None:
    return None


# The step in whose context we are.
current: ContextVar[Step | None] = ContextVar("tool_step", default=None)

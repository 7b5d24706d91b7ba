"""Which messages of a turn are its conversation, and which are work on the way, by the state of the graph.

What a model says counts as an answer from the start, unless a tool made the call. Whether it was one shows
when the step of its task ends: the graph keeps what belongs to the conversation in its state. What it does
not keep (the text of a router, an attempt that broke off) becomes work then, and nothing that was shown
vanishes. What the graph removes or rewrites in later steps to keep its memory short stays as it was said.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import BaseMessage, RemoveMessage

from runs.foundation.values import clean, text_of
from runs.states import Audience, EventType
from runs.translation.steps import GraphSteps

_MESSAGES = "messages"


@dataclass(slots=True)
class Told:
    """A message of the turn that counts as an answer."""

    text: str
    has_result: bool = False  # a result of a tool call follows it
    # The root graph's task that made it. None: its step has ended, and the state had it.
    task: str | None = None


class Conversation:
    """The messages of one turn that count as answers. Used on the event loop.

    ``on_new`` is called with each message that a step put into the state. ``told`` are the messages of the
    turn that are in the log, in their order.
    """

    def __init__(
        self,
        emit: Callable[[EventType, dict[str, Any]], None],
        steps: GraphSteps,
        on_new: Callable[[BaseMessage], None],
        told: Mapping[str, Told],
    ) -> None:
        self._emit = emit
        self._steps = steps
        self._on_new = on_new
        self._told = dict(told)
        self._in_state: set[str] | None = None  # ids of messages; None before the first state
        self._asks = False  # the graph asks the user, so the step in progress does not end

    def begin(self, task: str | None) -> None:
        """A message of this task is about to be told. The state of earlier steps was told before it.

        A step that writes nothing has no state.
        """
        if task is not None:
            self._end_steps()

    def close(self, *, is_complete: bool) -> None:
        """No chunk comes any more. ``is_complete``: the graph came to its end."""
        self._end_steps(all_of_them=is_complete)

    def _end_steps(self, *, all_of_them: bool = False) -> None:
        if self._in_state is None or self._asks:  # the graph keeps no messages, or the step goes on later
            return
        for message_id, told in list(self._told.items()):
            if told.task is not None and (all_of_them or self._steps.is_over(told.task)):
                self._make_work(message_id)

    def tell(self, message_id: str, text: str, task: str | None) -> None:
        """A message that counts as an answer is complete in the log."""
        self._told[message_id] = Told(text, task=task)

    def go_on(self, open_tasks: Collection[str]) -> None:
        """The turn goes on from a checkpoint in which these tasks of the root graph are open.

        What another task said was in the state when its step ended.
        """
        for told in self._told.values():
            if told.task not in open_tasks:
                told.task = None

    def has(self, message_id: str) -> bool:
        """Whether a message of this id is in the state, or was told."""
        return message_id in self._told or message_id in (self._in_state or ())

    def result_told(self) -> None:
        """The result of a tool call is in the log."""
        if self._told:
            self._told[next(reversed(self._told))].has_result = True

    @property
    def ends_with_text(self) -> bool:
        """Whether the turn's last answer has text, and no result follows it."""
        last = next(reversed(self._told.values()), None)
        return last is not None and not last.has_result and bool(last.text.strip())

    def feed_state(self, state: Any) -> None:
        """Take the root graph's state: the first one, or the one that a step has made.

        A state beside a question has the step's writes in part, and not as they will be.
        """
        if not isinstance(state, Mapping) or not isinstance(messages := state.get(_MESSAGES), list):
            return
        self._asks |= "__interrupt__" in state
        if self._asks:
            return
        by_id = {clean(m.id): m for m in messages if isinstance(m, BaseMessage) and m.id}
        if self._in_state is not None:
            for message_id, message in by_id.items():
                if message_id not in self._in_state:
                    self._on_new(message)
            self._compare(by_id)
        self._in_state = set(by_id)

    def _compare(self, by_id: Mapping[str, BaseMessage]) -> None:
        for message_id, told in list(self._told.items()):
            message = by_id.get(message_id)
            if message is not None:
                told.task = None
                text = clean(text_of(message.content))
                if text != told.text:
                    told.text = text
                    self._change(message_id, text=text)
            elif told.task is not None:
                self._make_work(message_id)

    def feed_update(self, update: Mapping[str, Any]) -> None:
        """Take what tasks of the root graph have written: a message removed by its id is no answer."""
        for written in update.values():
            messages = written.get(_MESSAGES) if isinstance(written, Mapping) else None
            for message in messages if isinstance(messages, list) else ():
                removed = clean(message.id or "") if isinstance(message, RemoveMessage) else ""
                if removed in self._told:
                    self._make_work(removed)

    def _make_work(self, message_id: str) -> None:
        del self._told[message_id]
        self._change(message_id, audience=Audience.WORK)

    def _change(self, message_id: str, **what: str) -> None:
        self._emit(EventType.MESSAGE_CHANGED, {"message": message_id, **what})

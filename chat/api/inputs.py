"""Serializers that read what a client sends, over REST and over WebSockets.

Unknown fields are ignored, so that newer clients can talk to older servers. A text with a NUL character or a
lone surrogate is refused. Neither can be stored, and to drop them would change what was written.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

from django.core.validators import ProhibitNullCharactersValidator
from rest_framework import serializers
from rest_framework.exceptions import ValidationError
from rest_framework.validators import ProhibitSurrogateCharactersValidator

from runs.foundation.limits import (
    EVENTS_LIMIT,
    IDEMPOTENCY_KEY_LIMIT,
    REASON_LIMIT,
    SEARCH_LIMIT,
    TITLE_LIMIT,
)
from runs.states import Audience, Multitask, OnDisconnect, Origin, SessionStatus

Values = dict[str, Any]

# The highest number an event can have.
MAX_SEQ = 2**31 - 1
# Entries on one page of a list.
PAGE_LIMIT = 200
# Characters of a request id, which comes back with the answer.
REQUEST_ID_LIMIT = 100


class Text(serializers.CharField):
    """A string, unchanged. REST framework's CharField would take numbers, too, and trim."""

    default_error_messages = {"invalid": "This must be text.", "only_spaces": "This field may not be blank."}

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(trim_whitespace=False, **kwargs)

    def to_internal_value(self, data: Any) -> str:
        if not isinstance(data, str):
            self.fail("invalid")
        if not self.allow_blank and not data.strip():
            self.fail("only_spaces")
        return data


class Choice(serializers.ChoiceField):
    """One of some words. The error does not repeat a wrong value, since that may be unprintable."""

    def __init__(self, choices: Sequence[str], **kwargs: Any) -> None:
        messages: dict[str, Any] = {"invalid_choice": f"This must be one of: {', '.join(choices)}."}
        super().__init__(choices, error_messages=messages, **kwargs)

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, str):  # REST framework would call str() on it, however deep it is nested
            self.fail("invalid_choice")
        return super().to_internal_value(data)


class Uuid(Text):
    """A UUID in a string, unchanged."""

    def to_internal_value(self, data: Any) -> str:
        text = super().to_internal_value(data)
        try:
            UUID(text)
        except ValueError:
            raise ValidationError("This must be a UUID.") from None
        return text


class Json(serializers.Field[Any, Any, Any, Any]):
    """Any JSON value of moderate depth, all of whose strings, keys and numbers can be stored."""

    depth_limit = 50
    # A checkpoint takes no larger integer, and PostgreSQL turns a larger float into such an integer.
    number_limit = 2**63

    def to_internal_value(self, data: Any) -> Any:
        waiting = [(data, 0)]
        while waiting:
            value, depth = waiting.pop()
            if depth > self.depth_limit:
                raise ValidationError("This is nested too deeply.")
            if isinstance(value, str):
                ProhibitNullCharactersValidator()(value)
                ProhibitSurrogateCharactersValidator()(value)
            elif isinstance(value, int | float) and not abs(value) < self.number_limit:
                raise ValidationError("A number in this is too large, or none.")
            elif isinstance(value, dict):
                waiting += [(part, depth + 1) for part in (*value.keys(), *value.values())]
            elif isinstance(value, list):
                waiting += [(part, depth + 1) for part in value]
        return data


class ById(Json):
    """An object that gives each of some ids a JSON value; not empty."""

    def to_internal_value(self, data: Any) -> Any:
        if not isinstance(data, dict) or not data:
            raise ValidationError('An object {"question id": answer} is expected.')
        return super().to_internal_value(data)


class Seconds(serializers.FloatField):
    """A number. REST framework's FloatField would take strings and booleans, too."""

    def to_internal_value(self, data: Any) -> float:
        if isinstance(data, bool) or not isinstance(data, int | float):
            self.fail("invalid")
        return super().to_internal_value(data)


class Input(serializers.Serializer[Any]):
    """The base of all inputs."""

    @classmethod
    def read(cls, data: Any) -> Values:
        """The checked values of ``data``, without those that were not given. Raises ValidationError."""
        return dict(_reader(cls).run_validation(data))


@cache
def _reader(kind: type[Input]) -> Input:
    """One instance for all inputs: to make one each time takes seven times as long as to read with it."""
    return kind()


class NewSession(Input):
    """A session to be opened."""

    agent = Text(required=False, max_length=100)
    title = Text(required=False, allow_blank=True, max_length=TITLE_LIMIT)


class Rename(Input):
    """A session's new title."""

    title = Text(max_length=TITLE_LIMIT)


class NewTurn(Input):
    """A turn to be started."""

    input = Text()
    on_disconnect = Choice(OnDisconnect.values, required=False)
    multitask = Choice(Multitask.values, required=False)
    stream_modes = serializers.ListField(child=Choice(["updates", "custom"]), required=False, max_length=2)


class Cancel(Input):
    """A request to cancel."""

    reason = Text(required=False, allow_blank=True, max_length=REASON_LIMIT)
    wait = Seconds(required=False, min_value=0, max_value=60)


class Reason(Input):
    """Why an operator acts."""

    reason = Text(max_length=REASON_LIMIT)


class Retry(Input):
    """A turn to be run again, perhaps with other words."""

    input = Text(required=False)


class Answers(Input):
    """Answers to all questions of a waiting run, by the question's id."""

    answers = ById()


class Page(Input):
    """Which page of a list to show."""

    limit = serializers.IntegerField(required=False, min_value=1, max_value=PAGE_LIMIT)
    cursor = Text(required=False, max_length=1000)


class SessionFilter(Page):
    """Which sessions to list."""

    search = Text(required=False, allow_blank=True, max_length=SEARCH_LIMIT)
    status = Choice(SessionStatus.values, required=False, allow_blank=True)
    origin = Choice(Origin.values, required=False, allow_blank=True)


class HistoryFilter(Input):
    """Which part of a history to show, and how."""

    limit = serializers.IntegerField(required=False, min_value=1, max_value=1000)
    before = Text(required=False, max_length=1000)
    audience = Choice([Audience.ANSWER, "all"], default=Audience.ANSWER)
    render = Choice(["html"], required=False)


class EventsFilter(Input):
    """Which part of a run's log to show."""

    after = serializers.IntegerField(required=False, min_value=0, max_value=MAX_SEQ)
    limit = serializers.IntegerField(required=False, min_value=1, max_value=EVENTS_LIMIT)


class IdempotencyKey(Input):
    """An idempotency key."""

    key = Text(max_length=IDEMPOTENCY_KEY_LIMIT)


class Frame(Input):
    """What every frame of a socket carries."""

    type = Text(max_length=50)
    request_id = Text(required=False, max_length=REQUEST_ID_LIMIT)


class TurnFrame(NewTurn):
    """``turn.start``. A socket never counts as the connection that streams the answer, so no ``cancel``."""

    request_id = Uuid()
    on_disconnect = Choice([OnDisconnect.CONTINUE.value], required=False)


class CancelFrame(Cancel):
    """``agent.cancel``."""

    session_id = Uuid()


class RunFrame(Input):
    """A frame about a run."""

    run = Uuid()


class RetryFrame(RunFrame, Retry):
    """``run.retry``."""


class AnswerFrame(RunFrame, Answers):
    """``run.answer``."""

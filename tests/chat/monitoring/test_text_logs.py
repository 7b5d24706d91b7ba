"""The log as text: a record is clean, bounded and has its secrets masked."""

import logging
import sys

import pytest
from django.conf import settings

from chat.monitoring.text_logs import RECORD_LIMIT, TextFormatter
from tests.fakes.errors import HOSTILE, SECRET_TEXT, SECRETS, WORD


def record(message: str, *args: object, exc_info: object = None) -> logging.LogRecord:
    return logging.LogRecord("elsewhere", logging.WARNING, __file__, 1, message, args, exc_info)


def test_a_record_says_when_how_bad_and_where():
    line = TextFormatter().format(record("told %s", "something"))
    assert line.endswith(" WARNING elsewhere: told something")
    assert line.startswith("20")


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE)
def test_what_an_exception_says_is_clean_bounded_and_masked(make):
    error = make()
    try:
        raise error
    except Exception:
        text = TextFormatter().format(record("It broke: %s", SECRET_TEXT, exc_info=sys.exc_info()))
    assert type(error).__name__ in text
    assert WORD in text
    assert len(text) <= RECORD_LIMIT
    assert not any(word in text for word in (*SECRETS, "\0", "\ud800"))


def test_it_is_what_a_process_writes_unless_json_is_wanted():
    assert settings.LOG_FORMAT == "text"
    (handler,) = (one for one in logging.getLogger().handlers if isinstance(one.formatter, TextFormatter))
    assert handler.level == getattr(logging, settings.LOG_LEVEL)

"""The log as one JSON object a line, for machines that collect it.

``{"at", "level", "logger", "message", "worker"?, "session"?, "run"?, "exc_info"?}``: the ids say what a line
is about, where that is known. Each text is clean, bounded and has its secrets masked.
"""

from logging import LogRecord
from typing import Any

from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter as Formatter

from chat.monitoring.text_logs import RECORD_LIMIT
from runs.foundation import log_context
from runs.foundation.values import presentable


class JsonFormatter(Formatter):
    """Formats a record, and adds the ids of what it is about."""

    def __init__(self) -> None:
        super().__init__(
            "{levelname}{name}{message}",
            style="{",
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp="at",
            # What Django adds to its records of requests holds no more than their message.
            reserved_attrs=[*RESERVED_ATTRS, "request", "server_time"],
            json_ensure_ascii=False,
        )

    def add_fields(self, log_data: dict[str, Any], record: LogRecord, message_dict: dict[str, Any]) -> None:
        super().add_fields(log_data, record, message_dict)
        log_data.update(log_context.ids())
        for name, value in log_data.items():
            if isinstance(value, str):
                log_data[name] = presentable(value, RECORD_LIMIT)

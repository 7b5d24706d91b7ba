"""The log as lines for people."""

import logging

from runs.foundation.values import presentable

# Characters of one record. Agents raise what they like, megabytes included.
RECORD_LIMIT = 50_000


class TextFormatter(logging.Formatter):
    """Formats a record clean, bounded and with secrets masked."""

    def __init__(self) -> None:
        super().__init__("{asctime} {levelname:<7} {name}: {message}", style="{")

    def format(self, record: logging.LogRecord) -> str:
        return presentable(super().format(record), RECORD_LIMIT)

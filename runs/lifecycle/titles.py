"""The title of a session."""

import textwrap
from uuid import UUID

from runs.lifecycle.locks import locked_session
from runs.states import TitleSource


def from_words(text: str) -> str:
    """The first words of a message as a title of at most 60 characters, never empty."""
    words = "".join(character if character.isprintable() else " " for character in text)
    return textwrap.shorten(words, 60, placeholder=" …") or words.strip()[:59] + "…"


def rename(session_id: UUID, title: str, source: TitleSource) -> None:
    """Change the title; what the system writes never takes the place of what the user wrote."""
    with locked_session(session_id) as session:
        if source != TitleSource.USER and session.title_source == TitleSource.USER:
            return
        session.title, session.title_source = title, source
        session.has_changed = True

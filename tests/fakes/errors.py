"""Exceptions whose text is no good for anybody, and the secrets in it."""

from collections.abc import Callable, Mapping

WORD = "quagga"  # stands in each text that can be read
SECRETS = (
    "sk-proj-Zk3vQ9x7LmN2pR5t",
    "hunter2-of-the-database",
    "tok.4711-of-the-query",
    "bear.4712-of-the-header",
)
SECRET_TEXT = (
    f"{WORD} key {SECRETS[0]} at postgresql://app:{SECRETS[1]}@db.internal:5432/x, "
    f"https://api.internal/v1?a=1&access_token={SECRETS[2]} with Authorization: Bearer {SECRETS[3]}"
)


class Unspeakable(Exception):
    """Has no text and no repr: both raise."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class Leaving(Exception):
    """Leaves the process when it is asked for its text."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


class Vexed(Exception):
    """Its attributes raise."""

    @property
    def error_code(self) -> str:
        raise RuntimeError("no code")

    status_code = user_message = error_code


HOSTILE: Mapping[str, Callable[[], Exception]] = {
    "with secrets": lambda: RuntimeError(SECRET_TEXT),
    "unstorable": lambda: ValueError(f"{WORD} \0 and \ud800 alone"),
    "without text": Unspeakable,
    "vexed": lambda: Vexed(WORD),
    "of megabytes": lambda: RuntimeError(f"{WORD} " + "x" * 3_000_000),
    "a group": lambda: ExceptionGroup(WORD, [ValueError(SECRET_TEXT)]),
}

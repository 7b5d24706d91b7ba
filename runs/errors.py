"""Every error the engine raises on purpose.

    EngineError
    ├── Invalid              400
    ├── NotFound             404
    ├── Conflict
    │   ├── RunActive        409
    │   ├── NotWaiting       409
    │   ├── NotInterrupted   409
    │   ├── IdempotencyConflict 409
    │   └── AgentMismatch    409
    ├── Forbidden            403
    ├── CursorGone           410
    ├── TooLarge             413
    ├── QueueFull            429
    ├── TooManyStragglers    429
    └── Unavailable          503
        └── DatabaseUnavailable 503
    Fenced                   internal: a write by an execution that no longer owns its run
    HistoryIsFinal           internal: a change of what is only ever added to and read

``code`` is the word of the wire contract and ``status`` its HTTP status; the docstring is the
default message, written for the person who reads it.
"""


class EngineError(Exception):
    """Something went wrong."""

    code = "internal"
    status = 500

    def __init__(self, message: str | None = None) -> None:
        self.message = message or " ".join((self.__doc__ or "").split())
        super().__init__(self.message)


class Invalid(EngineError):
    """The request is not valid."""

    code = "invalid"
    status = 400


class NotFound(EngineError):
    """There is no such thing, or it is not yours."""

    code = "not_found"
    status = 404


class Forbidden(EngineError):
    """You are not allowed to do this."""

    code = "forbidden"
    status = 403


class Conflict(EngineError):
    """The request does not fit the current state."""

    status = 409


class RunActive(Conflict):
    """A turn of this session is still active. Wait for it, stop it, or use multitask enqueue or interrupt."""

    code = "run_active"


class NotWaiting(Conflict):
    """This run is not waiting for an answer, or it has been answered already."""

    code = "not_waiting"


class NotInterrupted(Conflict):
    """This is not the run that waits for a decision, or something was decided about it already."""

    code = "not_interrupted"


class IdempotencyConflict(Conflict):
    """This idempotency key was used in this session with another request. Use a new key for a new turn."""

    code = "idempotency_conflict"


class AgentMismatch(Conflict):
    """The agent of this session is not configured any more. The session can be read, but takes no turns."""

    code = "agent_mismatch"


class CursorGone(EngineError):
    """The log before this point has been compacted. Reload the history and follow from its last_seq."""

    code = "cursor_gone"
    status = 410


class TooLarge(EngineError):
    """The message is too long."""

    code = "too_large"
    status = 413


class QueueFull(EngineError):
    """Too many turns are queued already. Wait until some of them have ended."""

    code = "throttled"
    status = 429


class TooManyStragglers(EngineError):
    """Too much of your stopped turns is still at work. Start another turn when some of it has ended."""

    code = "throttled"
    status = 429


class Unavailable(EngineError):
    """The server is leaving or not ready. Try again in a moment."""

    code = "unavailable"
    status = 503


class DatabaseUnavailable(Unavailable):
    """The database does not answer. Try again in a moment."""


class Fenced(Exception):
    """The execution no longer owns its run. Its writes are refused."""


class HistoryIsFinal(Exception):
    """Audit entries are added and read, never changed or deleted."""

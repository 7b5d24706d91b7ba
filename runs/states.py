"""The closed vocabularies of the engine: what a run, a tool call and a cancellation can be.

Everything here is stored or sent to clients, so a value never changes its meaning.
"""

from django.db import models


class RunStatus(models.TextChoices):
    """Where a run is in its life. Three are active, four are terminal and never change again."""

    QUEUED = "queued"  # admitted, its user message is durable, nobody executes it yet
    RUNNING = "running"  # claimed by a worker under a claim number
    WAITING = "waiting"  # the graph asked the user something; no execution exists
    COMPLETED = "completed"  # the graph came to its end
    FAILED = "failed"  # the graph cannot go on; the error code says why
    CANCELLED = "cancelled"  # somebody asked, or policy did; the cancellation says who
    INTERRUPTED = "interrupted"  # the execution was lost: crash, kill, drained at shutdown


ACTIVE = (RunStatus.QUEUED, RunStatus.RUNNING, RunStatus.WAITING)
OCCUPYING = (RunStatus.RUNNING, RunStatus.WAITING)
TERMINAL = (RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED, RunStatus.INTERRUPTED)


class Resolution(models.TextChoices):
    """What became of an ended run afterwards; no part of its status."""

    RESUMED = "resumed"  # a new run went on from its checkpoint
    RETRIED = "retried"  # a new run took its place in the history
    DISMISSED = "dismissed"  # its history was closed; nobody will go on from it


class SessionStatus(models.TextChoices):
    """What a session shows; derived from its runs, never stored."""

    IDLE = "idle"
    QUEUED = "queued"
    RUNNING = "running"
    WAITING = "waiting"
    INTERRUPTED = "interrupted"  # the latest run is interrupted and unresolved


class Origin(models.TextChoices):
    """Which edge opened a session."""

    CHAT = "chat"
    API = "api"  # opened by the OpenAI endpoint; not in the page's list


class TitleSource(models.TextChoices):
    """Who wrote a session's title. A source never overwrites one that stands below it in this list."""

    WORDS = "words"  # taken from the user's first words
    GENERATED = "generated"  # written by the model; replaces only words and generated ones
    USER = "user"  # given by the user; never overwritten by the system


class OnDisconnect(models.TextChoices):
    """What the end of the one connection that started and streams a run means for the run."""

    CONTINUE = "continue"
    CANCEL = "cancel"


class Multitask(models.TextChoices):
    """What admission does when the session already has an active run."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"  # cancel what is active, then take the turn


class ErrorCode(models.TextChoices):
    """Why a run failed."""

    PROVIDER = "provider"  # the model's provider or a remote graph refused, broke off or went silent
    TIMEOUT = "timeout"  # the run's deadline passed
    STEP_LIMIT = "step_limit"  # the graph took more steps than the agent may
    TOOL = "tool"  # a tool raised in a graph that does not handle it, or was called wrongly too often
    INTERNAL = "internal"  # the graph or the engine raised something nobody foresaw


class InterruptReason(models.TextChoices):
    """How an execution was lost."""

    WORKER_LOST = "worker_lost"  # its process is gone or has stopped beating
    SHUTDOWN = "shutdown"  # its process left in good order, the turn did not end in time


class ToolStatus(models.TextChoices):
    """How far a tool call came."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"


class Effect(models.TextChoices):
    """What is known of a tool call's effect on the world; null while it runs."""

    NONE = "none"  # it never started
    DONE = "done"  # its result arrived
    UNKNOWN = "unknown"  # it started and ended without a result

    @classmethod
    def without_result(cls, *, may_have_begun: bool) -> "Effect":
        """What is known of a call that ended without a result."""
        return cls.UNKNOWN if may_have_begun else cls.NONE


class Audience(models.TextChoices):
    """For whom a message is."""

    ANSWER = "answer"  # the user: it belongs to the conversation
    WORK = "work"  # who wants to know how the answer came about


class CancelSource(models.TextChoices):
    """Who asked for a cancel."""

    USER = "user"
    OPERATOR = "operator"
    DISCONNECT = "disconnect"  # the starting connection went away and the run's policy is cancel
    SUPERSEDED = "superseded"  # a newer turn came with multitask=interrupt
    SYSTEM = "system"  # deletion, a deadline of the engine


class CancelOutcome(models.TextChoices):
    """How a cancellation settled."""

    CANCELLED = "cancelled"  # the run ended cancelled
    ALREADY_FINISHED = "already_finished"  # the run had ended before acceptance; nothing was recorded
    RECONCILED = "reconciled"  # the run was ended without its worker, which was dead or given up
    TIMED_OUT = "timed_out"  # the worker lives and did not answer in time; cancel may be tried again
    FAILED = "failed"  # the settling itself broke; cancel may be tried again


class EventType(models.TextChoices):
    """The types of the durable log; their data is described in docs/clients/events.md."""

    RUN_QUEUED = "run.queued"
    RUN_STARTED = "run.started"
    MESSAGE_STARTED = "message.started"
    MESSAGE_DELTA = "message.delta"
    MESSAGE_COMPLETED = "message.completed"
    MESSAGE_CHANGED = "message.changed"
    TOOL_STARTED = "tool.started"
    TOOL_PROGRESS = "tool.progress"
    TOOL_COMPLETED = "tool.completed"
    TOOL_FAILED = "tool.failed"
    TOOL_CANCELLED = "tool.cancelled"
    RUN_WAITING = "run.waiting"
    RUN_ANSWERED = "run.answered"
    GRAPH_UPDATE = "graph.update"
    GRAPH_CUSTOM = "graph.custom"
    RUN_COMPLETED = "run.completed"
    RUN_FAILED = "run.failed"
    RUN_CANCELLED = "run.cancelled"
    RUN_INTERRUPTED = "run.interrupted"


TERMINAL_EVENT = {
    RunStatus.COMPLETED: EventType.RUN_COMPLETED,
    RunStatus.FAILED: EventType.RUN_FAILED,
    RunStatus.CANCELLED: EventType.RUN_CANCELLED,
    RunStatus.INTERRUPTED: EventType.RUN_INTERRUPTED,
}
TERMINAL_TYPES = frozenset(TERMINAL_EVENT.values())

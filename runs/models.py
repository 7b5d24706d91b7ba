"""The durable facts of the engine. The constraints here are the invariants that a database can hold.

A foreign key with which another index or constraint begins has no index of its own: every event that is
written would have to keep it up.
"""

import uuid
from collections.abc import Collection
from typing import Any, NoReturn, Self

from django.conf import settings
from django.db import models
from django.db.models import Exists, F, OuterRef, Q
from django.utils import timezone

from runs.errors import HistoryIsFinal
from runs.foundation import sql
from runs.foundation.limits import ID_LIMIT, IDEMPOTENCY_KEY_LIMIT, REASON_LIMIT, TITLE_LIMIT, TOOL_NAME_LIMIT
from runs.states import (
    ACTIVE,
    OCCUPYING,
    TERMINAL,
    CancelOutcome,
    CancelSource,
    Effect,
    ErrorCode,
    EventType,
    OnDisconnect,
    Origin,
    Resolution,
    RunStatus,
    TitleSource,
    ToolStatus,
)

# Interrupted, and nobody has decided what becomes of it.
UNDECIDED = Q(status=RunStatus.INTERRUPTED, resolution__isnull=True)
# A cancel that is in progress.
UNSETTLED = Q(settled_at__isnull=True)


class Session(models.Model):
    """One conversation: the unit of exclusion, of the LangGraph thread and of the cancellation projection."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    owner = models.ForeignKey(
        settings.AUTH_USER_MODEL, models.CASCADE, related_name="agent_sessions", db_index=False
    )
    agent = models.CharField(max_length=100)
    title = models.CharField(max_length=TITLE_LIMIT, blank=True, default="")
    title_source = models.CharField(max_length=10, choices=TitleSource, default=TitleSource.WORDS)
    origin = models.CharField(max_length=10, choices=Origin, default=Origin.CHAT)
    created_at = models.DateTimeField(default=timezone.now)
    # Moved, strictly upwards, by every change of what a representation of the session shows.
    updated_at = models.DateTimeField(default=timezone.now)
    cancellation_revision = models.PositiveBigIntegerField(default=0)
    last_position = models.PositiveIntegerField(default=0)
    last_queue_place = models.PositiveIntegerField(default=0, db_column="last_line")

    # No column. Whoever holds the lock of the session writes it once, in the end, if this is set.
    has_changed = False

    class Meta:
        indexes = [
            models.Index(fields=["owner", "-updated_at", "id"], name="session_owner_recent"),
            models.Index(fields=["-updated_at", "-id"], name="session_recent"),
        ]
        default_permissions = ("view", "delete")

    def __str__(self) -> str:
        return self.title or str(self.id)


class Seed(models.Model):
    """The messages a session began with; apart from the session, which is read far more often."""

    session = models.OneToOneField(Session, models.CASCADE, primary_key=True)
    messages = models.JSONField()  # in LangChain's form, see runs.memory.brought_messages

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"the seed of {self.session_id}"


class Leftover(models.Model):
    """A session that is deleted but for its checkpoints, see runs.recovery.orphans."""

    session_id = models.UUIDField(primary_key=True)
    tried_at = models.DateTimeField()  # the last attempt to delete them

    class Meta:
        default_permissions = ()

    def __str__(self) -> str:
        return f"the checkpoints of {self.session_id}"


class Worker(models.Model):
    """One process that executes runs, and the last sign of life it gave."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    host = models.CharField(max_length=255)
    boot = models.CharField(max_length=64)  # identifies the host's boot, so that a pid means something
    pid = models.PositiveIntegerField()
    pid_started = models.CharField(max_length=32)  # tells a reused pid from this process
    version = models.CharField(max_length=50)
    started_at = models.DateTimeField(default=timezone.now)
    heartbeat_at = models.DateTimeField(default=timezone.now)
    active_runs = models.PositiveIntegerField(default=0)
    stragglers = models.PositiveIntegerField(default=0)
    leaving = models.BooleanField(default=False)

    class Meta:
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.host}:{self.pid}"


class RunQuerySet(models.QuerySet["Run"]):
    """Conditions on runs that are asked in more than one place.

    Statuses are in one list, so that SQLite uses an index instead of reading each run.
    """

    def open(self) -> Self:
        """Active, or interrupted and undecided: these decide who comes next. Nothing active is resolved."""
        return self.filter(status__in=(*ACTIVE, RunStatus.INTERRUPTED), resolution__isnull=True)

    def undecided(self) -> Self:
        """``UNDECIDED``: at most one of a session, and nothing is claimed behind it.

        It need not be the latest: what was queued behind it and cancelled there has ended after it.
        """
        return self.filter(UNDECIDED)

    def ahead_of_queues(self) -> Self:
        """What the queue of its session waits behind: open, and out of the queue."""
        return self.filter(status__in=(*OCCUPYING, RunStatus.INTERRUPTED), resolution__isnull=True)

    def awaiting_claim(self) -> Self:
        """In a queue, or answered and not yet taken."""
        is_one = Q(status=RunStatus.QUEUED) | Q(answers__isnull=False)
        return self.filter(is_one, status__in=(RunStatus.QUEUED, RunStatus.WAITING))

    def claimable(self) -> Self:
        """What a worker may take now: an answered run, or the queue of a session in which nothing is ahead.

        Of a queue the first is taken.
        """
        ahead = Run.objects.ahead_of_queues().filter(session=OuterRef("session"))
        return self.awaiting_claim().filter(Q(status=RunStatus.WAITING) | ~Exists(ahead))


class Run(models.Model):
    """One turn of the agent in a session, from admission to one terminal fact.

    ``runs.lifecycle.status`` is the only writer of ``status``.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, models.CASCADE, related_name="runs", db_index=False)
    # Copied from the session, where it never changes, so that figures need not read each session.
    agent = models.CharField(max_length=100, editable=False)
    # Order among the queued: a resuming or retrying run takes a negative place and so the head.
    queue_place = models.BigIntegerField(db_column="line")
    # Order of the session's stream, given when the run leaves the queue.
    position = models.PositiveIntegerField(null=True)
    status = models.CharField(max_length=12, choices=RunStatus, default=RunStatus.QUEUED)
    resolution = models.CharField(max_length=10, choices=Resolution, null=True)
    on_disconnect = models.CharField(max_length=10, choices=OnDisconnect, default=OnDisconnect.CONTINUE)
    stream_modes = models.JSONField(default=list)
    resumes = models.ForeignKey("self", models.SET_NULL, null=True, related_name="resumed_by")
    retries = models.ForeignKey("self", models.SET_NULL, null=True, related_name="retried_by")

    input = models.TextField(blank=True)
    message_id = models.CharField(max_length=100)  # the id of the user's message in the graph
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    idempotency_key = models.CharField(max_length=IDEMPOTENCY_KEY_LIMIT, null=True)
    request_digest = models.CharField(max_length=64, blank=True, default="")

    questions = models.JSONField(null=True)  # [{id, value}] while waiting and after
    answers = models.JSONField(null=True)  # {id: value}, stored by compare-and-set
    answered_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")

    error_code = models.CharField(max_length=12, choices=ErrorCode, null=True)
    error_message = models.TextField(blank=True, default="")
    error_details = models.TextField(null=True)  # what was raised; for operators only
    # Set once, by the acceptance of a cancel. From then on the run can only become cancelled.
    cancel_requested_at = models.DateTimeField(null=True)

    worker = models.ForeignKey(Worker, models.SET_NULL, null=True, related_name="runs", db_index=False)
    claim = models.PositiveIntegerField(default=0)  # raised by each claim; the fence of all writes
    claimed_at = models.DateTimeField(null=True)
    # Batches written by the event writer; tells whether a COMMIT whose reply was lost did happen.
    batches = models.PositiveIntegerField(default=0)
    automatic_resumes = models.PositiveIntegerField(default=0)
    # The checkpoint has all of this run, in a form that providers accept.
    repaired = models.BooleanField(default=False)
    last_seq = models.PositiveIntegerField(default=0)
    # The last event that compaction took out of the log; 0 if there was none to take, null before it.
    compacted_to = models.PositiveIntegerField(null=True)

    created_at = models.DateTimeField(default=timezone.now)
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    last_event_at = models.DateTimeField(default=timezone.now)

    message_count = models.PositiveIntegerField(default=0)
    llm_calls = models.PositiveIntegerField(default=0)
    tool_calls = models.PositiveIntegerField(default=0)
    input_tokens = models.PositiveBigIntegerField(null=True)
    output_tokens = models.PositiveBigIntegerField(null=True)
    tokens_estimated = models.BooleanField(default=False)
    # What the LLM calls in progress would count if they ended now; folded into the totals at the end.
    open_input_tokens = models.PositiveBigIntegerField(default=0)
    open_output_tokens = models.PositiveBigIntegerField(default=0)
    first_token_ms = models.PositiveIntegerField(null=True)
    duration_ms = models.PositiveBigIntegerField(default=0)

    objects = RunQuerySet.as_manager()

    # No columns. Admission found this run by its idempotency key and did not admit it now:
    was_there = False
    # What the row held when it was read:
    _stored: dict[str, Any]

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["session"], condition=Q(status__in=OCCUPYING), name="one_occupying_run_per_session"
            ),
            models.UniqueConstraint(fields=["session", "position"], name="one_run_per_position"),
            models.UniqueConstraint(fields=["session", "queue_place"], name="one_run_per_line"),
            models.UniqueConstraint(
                fields=["session", "idempotency_key"],
                condition=Q(idempotency_key__isnull=False),
                name="one_run_per_idempotency_key",
            ),
            models.CheckConstraint(
                condition=Q(status__in=TERMINAL, finished_at__isnull=False)
                | Q(status__in=ACTIVE, finished_at__isnull=True),
                name="terminal_runs_have_an_end",
            ),
            models.CheckConstraint(
                condition=Q(status=RunStatus.QUEUED, position__isnull=True)
                | (~Q(status=RunStatus.QUEUED) & Q(position__isnull=False)),
                name="position_from_the_queue_on",
            ),
            models.CheckConstraint(
                condition=Q(cancel_requested_at__isnull=True)
                | Q(status__in=(RunStatus.RUNNING, RunStatus.CANCELLED)),
                name="accepted_cancel_wins",
            ),
            models.CheckConstraint(
                condition=(Q(status=RunStatus.FAILED) & Q(error_code__isnull=False))
                | (~Q(status=RunStatus.FAILED) & Q(error_code__isnull=True)),
                name="only_failed_runs_have_an_error",
            ),
        ]
        indexes = [
            models.Index(fields=["session", "status", "queue_place"], name="run_queue"),
            # With the status in it SQLite prefers it to the index of all that a worker has ever run.
            models.Index(
                fields=["worker", "status"], condition=Q(status=RunStatus.RUNNING), name="run_of_worker"
            ),
            models.Index(fields=["status", "created_at"], condition=Q(status__in=ACTIVE), name="run_active"),
            models.Index(fields=["-created_at", "-id"], name="run_newest"),
            models.Index(fields=["worker", "-created_at", "-id"], name="run_newest_by_worker"),
            models.Index(fields=["status", "-created_at", "-id"], name="run_newest_by_status"),
            # Has all that a day's figures are made of, so that the rows need not be read.
            models.Index(
                fields=["finished_at", "agent", "status", "input_tokens", "output_tokens"],
                condition=Q(finished_at__isnull=False),
                name="run_figures",
            ),
        ]
        default_permissions = ("view",)  # of everybody's; one's own need none
        permissions = [
            ("cancel_run", "Can cancel anybody's run"),
            ("force_cancel_run", "Can end any run without its worker"),
            ("reconcile_run", "Can bring a stuck run into order"),
            ("resume_run", "Can resume anybody's interrupted run"),
            ("dismiss_run", "Can dismiss anybody's interrupted run"),
            ("read_chats", "Can read what others and their agents have said"),
        ]

    def __str__(self) -> str:
        return f"{self.id} {self.status}"

    @classmethod
    def from_db(
        cls, db: str | None, field_names: Collection[str], values: Collection[Any], **options: Any
    ) -> Self:
        run = super().from_db(db, field_names, values, **options)
        run._stored = dict(zip(field_names, values, strict=True))
        return run

    def write(self, **expected: Any) -> bool:
        """Write what differs from what was read, if the row has the values expected; whether it had.

        A whole row costs several times as much. JSON is compared as an object: to Python, 1 equals true.
        """
        changed = [
            name
            for name, stored in self._stored.items()
            if (now := getattr(self, name)) is not stored and (isinstance(now, dict | list) or now != stored)
        ]
        if not sql.update(self, changed or ["id"], expected):
            return False
        self._stored |= {name: getattr(self, name) for name in changed}
        return True

    @property
    def is_terminal(self) -> bool:
        return self.status in TERMINAL

    @property
    def is_undecided(self) -> bool:
        """As ``UNDECIDED``."""
        return self.status == RunStatus.INTERRUPTED and self.resolution is None


class RunEvent(models.Model):
    """One entry of a run's durable log."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="events", db_index=False)
    seq = models.PositiveIntegerField()
    type = models.CharField(max_length=20, choices=EventType)
    data = models.JSONField()
    at = models.DateTimeField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "seq"], name="one_event_per_seq")]
        indexes = [
            # Serves the history: the time of each message, without reading the deltas between them.
            models.Index(
                fields=["run"], condition=Q(type=EventType.MESSAGE_COMPLETED), name="event_completed_message"
            ),
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.run_id}:{self.seq} {self.type}"


class ToolCall(models.Model):
    """One tool call of a run and what is known of its effect."""

    run = models.ForeignKey(Run, models.CASCADE, related_name="calls", db_index=False)
    call_id = models.CharField(max_length=ID_LIMIT)  # its id, or the ``lookup_key`` of one that is too long
    long_id = models.TextField(null=True)  # its id, if it is too long for a key
    message_id = models.CharField(max_length=ID_LIMIT, blank=True, default="")  # a lookup key, too
    name = models.CharField(max_length=TOOL_NAME_LIMIT)
    args = models.JSONField(default=dict)
    status = models.CharField(max_length=12, choices=ToolStatus, default=ToolStatus.RUNNING)
    effect = models.CharField(max_length=8, choices=Effect, null=True)
    result = models.TextField(null=True)
    error = models.TextField(null=True)
    # When it began; of one that may have begun unseen, by then. Null if it never did.
    started_at = models.DateTimeField(null=True)
    duration_ms = models.PositiveBigIntegerField(null=True)
    # Its start is committed before it begins. So without ``started_at`` it has not begun.
    start_is_logged = models.BooleanField(default=False)
    # What it has given, for its step to start over; null if the log has all of it.
    kept = models.BinaryField(null=True)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["run", "call_id"], name="one_row_per_tool_call")]
        indexes = [
            models.Index(
                fields=["-started_at", "run"],
                condition=Q(effect=Effect.UNKNOWN),
                name="call_of_unknown_effect",
            ),
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.name} {self.status}"

    @property
    def given_id(self) -> str:
        """Its id as the model's provider gave it."""
        return self.call_id if self.long_id is None else self.long_id

    @property
    def was_answered(self) -> bool:
        """Its result arrived, or an error in its place."""
        return self.status in (ToolStatus.COMPLETED, ToolStatus.FAILED)


class Cancellation(models.Model):
    """One cancel operation. It belongs to the session, not to the request that started it."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    session = models.ForeignKey(Session, models.CASCADE, related_name="cancellations")
    run = models.ForeignKey(Run, models.CASCADE, related_name="cancellations")
    source = models.CharField(max_length=10, choices=CancelSource)
    reason = models.CharField(max_length=REASON_LIMIT, blank=True, default="")
    requested_by = models.ForeignKey(settings.AUTH_USER_MODEL, models.SET_NULL, null=True, related_name="+")
    accepted_at = models.DateTimeField()
    settled_at = models.DateTimeField(null=True)
    outcome = models.CharField(max_length=16, choices=CancelOutcome, null=True)
    escalated = models.BooleanField(default=False)  # something had to be given up on

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["session"], condition=Q(settled_at__isnull=True), name="one_unsettled_cancellation"
            ),
            models.CheckConstraint(
                condition=Q(settled_at__isnull=True, outcome__isnull=True)
                | Q(settled_at__isnull=False, outcome__isnull=False),
                name="settled_with_an_outcome",
            ),
            models.CheckConstraint(
                condition=Q(settled_at__isnull=True) | Q(settled_at__gte=F("accepted_at")),
                name="settled_after_acceptance",
            ),
        ]
        indexes = [
            models.Index(
                fields=["accepted_at"], condition=Q(settled_at__isnull=True), name="cancellation_unsettled"
            ),
            models.Index(fields=["-accepted_at", "-id"], name="cancellation_newest"),
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.run_id} {self.outcome or 'pending'}"


class AuditLog(models.QuerySet["AuditEntry"]):
    """Entries are added and read. What else a query could do to them is refused."""

    def update(self, **values: Any) -> NoReturn:
        raise HistoryIsFinal

    def bulk_update(self, *args: Any, **options: Any) -> NoReturn:
        raise HistoryIsFinal

    def delete(self) -> NoReturn:
        raise HistoryIsFinal


class AuditEntry(models.Model):
    """What somebody did with more than an owner's rights, or what cannot be undone."""

    at = models.DateTimeField(default=timezone.now)
    actor = models.CharField(max_length=150)  # a name, not a key: it outlives the account
    action = models.CharField(max_length=50)
    target = models.CharField(max_length=200)
    reason = models.CharField(max_length=REASON_LIMIT, blank=True, default="")
    details = models.JSONField(default=dict)

    objects = AuditLog.as_manager()

    class Meta:
        verbose_name_plural = "audit entries"
        indexes = [
            models.Index(fields=["-at", "-id"], name="audit_newest"),
            models.Index(fields=["target"], name="audit_target"),
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.actor} {self.action} {self.target}"

    def save(self, *args: Any, **options: Any) -> None:
        if not self._state.adding:
            raise HistoryIsFinal
        super().save(*args, **options)

    def delete(self, *args: Any, **options: Any) -> NoReturn:
        raise HistoryIsFinal


class DailyTotal(models.Model):
    """What deleted sessions add to the figures of a day, so that a deletion does not change them."""

    day = models.DateField()  # of the run's end, in the configured time zone
    agent = models.CharField(max_length=100)
    status = models.CharField(max_length=12, choices=RunStatus)
    runs = models.PositiveIntegerField(default=0)
    message_count = models.PositiveBigIntegerField(default=0)
    llm_calls = models.PositiveBigIntegerField(default=0)
    tool_calls = models.PositiveBigIntegerField(default=0)
    input_tokens = models.PositiveBigIntegerField(default=0)
    output_tokens = models.PositiveBigIntegerField(default=0)
    duration_ms = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["day", "agent", "status"], name="one_total_per_day_agent_status")
        ]
        default_permissions = ("view",)

    def __str__(self) -> str:
        return f"{self.day} {self.agent} {self.status}"

"""The JSON objects that leave the engine.

The functions that make these objects return these types. The OpenAPI schema is made from them, too
(``chat.api.schema``): the docstring of a class describes the object, the string behind a field describes the
field. Ids and times are strings, unknown is null, false is false.
"""

from typing import Annotated, Any, NotRequired, TypeAlias

from typing_extensions import TypedDict  # Pydantic needs this one before Python 3.12

from runs.states import (
    Audience,
    CancelOutcome,
    CancelSource,
    Effect,
    ErrorCode,
    EventType,
    InterruptReason,
    OnDisconnect,
    Origin,
    Resolution,
    RunStatus,
    SessionStatus,
    ToolStatus,
)


class Keywords:
    """JSON Schema keywords for a type, where Python's type alone does not say enough."""

    def __init__(self, **keywords: Any) -> None:
        self._keywords = keywords

    def __get_pydantic_json_schema__(self, core_schema: Any, handler: Any) -> dict[str, Any]:
        # Pydantic looks for this method. The engine needs no more of pydantic than its name.
        return {**handler(core_schema), **self._keywords}


Id: TypeAlias = Annotated[str, Keywords(format="uuid")]
Time: TypeAlias = Annotated[str, Keywords(format="date-time", description="ISO 8601, in UTC.")]
Count: TypeAlias = Annotated[int, Keywords(minimum=0)]
GraphId: TypeAlias = Annotated[str, Keywords(description="An id of the graph's own.")]
AnyJson: TypeAlias = Annotated[Any, Keywords(description="Any JSON value.")]
Tokens: TypeAlias = Annotated[int, Keywords(minimum=0, description="Null: not known.")]
Username: TypeAlias = Annotated[str, Keywords(description="A username.")]
Sentence: TypeAlias = Annotated[str, Keywords(description="A sentence a person can read.")]
Node: TypeAlias = Annotated[str, Keywords(description="The node of the graph.")]
Namespace: TypeAlias = Annotated[
    list[str], Keywords(description="Where among nested graphs; empty for the graph itself.")
]


class Agent(TypedDict):
    name: str
    title: str
    description: str
    default: bool
    """A new session gets it unless another one is named."""


class _Counts(TypedDict):
    # Pydantic does not find the strings behind the fields of a base class.
    message_count: Annotated[int, Keywords(minimum=0, description="User, assistant and tool messages.")]
    llm_calls: Count
    tool_calls: Count
    input_tokens: Tokens | None
    output_tokens: Tokens | None
    tokens_estimated: Annotated[
        bool, Keywords(description="Some of the tokens are an estimate, as those of an aborted call are.")
    ]
    duration_ms: Annotated[
        int, Keywords(minimum=0, description="Time of execution; queueing and waiting do not count.")
    ]


class SessionStatistics(_Counts):
    """The sums over a session's runs."""

    runs: Count


class RunStatistics(_Counts):
    first_token_ms: Count | None
    """From the start to the first text of an answer."""


class RunError(TypedDict):
    """Why a run failed."""

    code: Annotated[str, Keywords(enum=ErrorCode.values)]
    message: Sentence


class Cancellation(TypedDict):
    """One cancel operation."""

    id: Id | None
    """Null: there was nothing to cancel any more."""
    session: Id
    run: Id | None
    source: Annotated[str, Keywords(enum=CancelSource.values)]
    reason: str
    requested_by: Username | None
    accepted_at: Time | None
    settled_at: Time | None
    outcome: Annotated[str, Keywords(enum=CancelOutcome.values)] | None
    """Null: it has not settled yet."""
    escalated: bool
    """Something did not stop in time and was given up on."""


class Question(TypedDict):
    """What a waiting run asks."""

    id: GraphId
    value: AnyJson
    response_schema: NotRequired[
        Annotated[dict[str, Any], Keywords(description="JSON Schema of the answer, if the graph gave one.")]
    ]


class Run(TypedDict):
    """One turn of the agent, from admission to one terminal fact."""

    id: Id
    session: Id
    position: Count | None
    """Its place in the session's stream; null while it is queued."""
    status: Annotated[str, Keywords(enum=RunStatus.values)]
    resolution: Annotated[str, Keywords(enum=Resolution.values)] | None
    """What became of an ended run afterwards."""
    on_disconnect: Annotated[str, Keywords(enum=OnDisconnect.values)]
    resumes: Id | None
    retries: Id | None
    questions: list[Question] | None
    """What it asks its user; null when it waits for no answer."""
    error: RunError | None
    cancellation: Cancellation | None
    statistics: RunStatistics
    last_seq: Count
    """The number of its last event."""
    stragglers: Count
    """How much of what it started did not stop when it ended, and is still at work."""
    created_at: Time
    started_at: Time | None
    finished_at: Time | None


class QueuedTurn(TypedDict):
    run: Id
    message: GraphId
    input: str
    created_at: Time


class SessionSummary(TypedDict):
    """A session's entry in its owner's list, as a socket tells it."""

    id: Id
    title: str
    status: Annotated[str, Keywords(enum=SessionStatus.values)]
    updated_at: Time


class Session(SessionSummary):
    """One conversation."""

    agent: str
    origin: Annotated[str, Keywords(enum=Origin.values)]
    active_run: Run | None
    queued: list[QueuedTurn]
    """The line, first first."""
    created_at: Time
    cancellation_pending: bool
    """A cancel of this session was accepted and has not settled."""
    cancellation_revision: Count
    """Grows whenever cancellation_pending changes. Drop what has a lower one than you have seen."""
    statistics: SessionStatistics


class Reconciliation(TypedDict):
    """What an operator's reconcile did."""

    run: Run
    changed: bool
    """Something was changed."""
    done: list[str]
    """What was done or found, a sentence each."""


class Worker(TypedDict):
    """One process that executes runs."""

    id: Id
    host: str
    pid: Count
    version: str
    started_at: Time
    heartbeat_at: Time
    active_runs: Count
    stragglers: Count
    """Runs that ended while a thread or process of theirs still works."""


class Usage(TypedDict):
    input_tokens: Count | None
    output_tokens: Count | None


class ToolCall(TypedDict):
    id: GraphId | None
    name: str
    args: dict[str, Any]
    status: Annotated[str, Keywords(enum=ToolStatus.values)]
    result: str | None
    error: str | None
    effect: (
        Annotated[
            str,
            Keywords(
                enum=Effect.values,
                description="none: never started. done: its result arrived. unknown: it started and ended "
                "without one. Null while it runs.",
            ),
        ]
        | None
    )
    duration_ms: Count | None


_Audience: TypeAlias = Annotated[
    str,
    Keywords(
        enum=Audience.values,
        description="answer: it belongs to the conversation. work: it is how the answer came about.",
    ),
]


class Message(TypedDict):
    id: GraphId | None
    run: Id | None
    role: Annotated[str, Keywords(enum=["user", "assistant", "system"])]
    text: str
    status: Annotated[str, Keywords(enum=["complete", "interrupted", "streaming"])]
    audience: _Audience
    tool_calls: list[ToolCall]
    usage: Usage | None
    at: Time | None
    html: NotRequired[str]
    """Sanitised HTML of the text, with ?render=html."""


class History(TypedDict):
    """A session's messages, and its latest run: follow on from that run's last_seq."""

    session: Session
    messages: list[Message]
    """Oldest first."""
    run: Run | None


# The log of a run. The data of each event is one of the classes that EVENTS names.


class Event(TypedDict):
    run: Id
    seq: Annotated[int, Keywords(minimum=1, description="Without holes.")]
    type: str
    data: Any
    at: Time


class EventPage(TypedDict):
    events: list[Event]
    last_seq: Count
    """The number of the page's last event: the next page's after."""
    done: bool
    """The run has ended and there is nothing behind this page."""


class RunQueued(TypedDict):
    message: GraphId
    input: str
    """The user's words."""


class RunStarted(TypedDict):
    worker: Id
    resumes: Id | None
    retries: Id | None


_Assistant: TypeAlias = Annotated[str, Keywords(enum=["assistant"])]


class MessageStarted(TypedDict):
    message: GraphId
    role: _Assistant
    node: Node | None
    namespace: Namespace
    audience: NotRequired[_Audience]
    """Not in older logs."""
    task: NotRequired[Annotated[str | None, Keywords(description="The step of the graph that made it.")]]


class MessageDelta(TypedDict):
    message: GraphId
    text: str
    """What comes next."""


class RequestedToolCall(TypedDict):
    """A tool call as the model asked for it."""

    id: GraphId
    name: str
    args: dict[str, Any]
    error: NotRequired[str]
    """Its arguments could not be read."""


class MessageCompleted(TypedDict):
    message: GraphId
    role: _Assistant
    text: str
    """The whole text."""
    tool_calls: list[RequestedToolCall]
    usage: Usage | None
    status: Annotated[str, Keywords(enum=["complete", "interrupted"])]


class MessageChanged(TypedDict):
    """What is known better of a message that was told. What is absent stays as it was."""

    message: GraphId
    text: NotRequired[Annotated[str, Keywords(description="What the graph made of its text.")]]
    audience: NotRequired[_Audience]


class ToolStarted(TypedDict):
    tool_call: GraphId
    message: GraphId | None
    name: str
    args: dict[str, Any]
    node: Node | None
    namespace: Namespace


class ToolProgress(TypedDict):
    tool_call: GraphId
    text: str


class ToolCompleted(TypedDict):
    tool_call: GraphId
    result: str
    duration_ms: Count | None


class ToolFailed(TypedDict):
    tool_call: GraphId
    error: str
    duration_ms: Count | None


class ToolCancelled(TypedDict):
    tool_call: GraphId
    effect: Annotated[str, Keywords(enum=[Effect.NONE.value, Effect.UNKNOWN.value])]


class RunWaiting(TypedDict):
    questions: list[Question]
    reason: NotRequired[
        Annotated[Sentence, Keywords(description="Why it asks again: an answer was refused.")]
    ]


class RunAnswered(TypedDict):
    answers: dict[str, Any]
    by: Username


class GraphUpdate(TypedDict):
    node: str
    namespace: Namespace
    data: AnyJson


class GraphCustom(TypedDict):
    namespace: Namespace
    data: AnyJson


class RunCompleted(TypedDict):
    statistics: RunStatistics


class RunFailed(TypedDict):
    statistics: RunStatistics
    error: RunError


class RunCancelled(TypedDict):
    statistics: RunStatistics
    cancellation: NotRequired[Cancellation]


class RunInterrupted(TypedDict):
    statistics: RunStatistics
    reason: NotRequired[Annotated[str, Keywords(enum=InterruptReason.values)]]
    effects: NotRequired[dict[str, Annotated[str, Keywords(enum=Effect.values)]]]
    """Of each tool call that is open, by its id."""


EVENTS: dict[EventType, type] = {
    EventType.RUN_QUEUED: RunQueued,
    EventType.RUN_STARTED: RunStarted,
    EventType.MESSAGE_STARTED: MessageStarted,
    EventType.MESSAGE_DELTA: MessageDelta,
    EventType.MESSAGE_COMPLETED: MessageCompleted,
    EventType.MESSAGE_CHANGED: MessageChanged,
    EventType.TOOL_STARTED: ToolStarted,
    EventType.TOOL_PROGRESS: ToolProgress,
    EventType.TOOL_COMPLETED: ToolCompleted,
    EventType.TOOL_FAILED: ToolFailed,
    EventType.TOOL_CANCELLED: ToolCancelled,
    EventType.RUN_WAITING: RunWaiting,
    EventType.RUN_ANSWERED: RunAnswered,
    EventType.GRAPH_UPDATE: GraphUpdate,
    EventType.GRAPH_CUSTOM: GraphCustom,
    EventType.RUN_COMPLETED: RunCompleted,
    EventType.RUN_FAILED: RunFailed,
    EventType.RUN_CANCELLED: RunCancelled,
    EventType.RUN_INTERRUPTED: RunInterrupted,
}

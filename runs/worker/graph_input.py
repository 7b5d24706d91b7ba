"""What an execution needs to know of its turn and of those before it, and what the graph is given."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias
from uuid import UUID

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage
from langgraph.graph.state import CompiledStateGraph
from langgraph.types import Command

from runs import statements
from runs.foundation.database import in_thread
from runs.foundation.values import lookup_key
from runs.lifecycle import endings
from runs.log import tool_calls, transcript
from runs.log.transcript import Transcript
from runs.memory import brought_messages, root_state, state_messages
from runs.memory.checkpoints.saver import By, FencedSaver
from runs.memory.repair import repair
from runs.models import Run, RunEvent
from runs.states import Audience, Resolution
from runs.translation.conversation import Told
from runs.translation.tools import CallState, Kept
from runs.translation.translator import LoggedBefore, question_of

# Messages, by the namespace of the graph that said them.
SavedMessages: TypeAlias = Sequence[tuple[state_messages.Namespace, list[BaseMessage]]]


@dataclass(slots=True)
class TurnContext:
    """What an execution has to know of its run and of the turns before it."""

    run: Run
    said: Transcript  # by this run so far, and by the runs it resumes
    continues: bool  # it resumes a run or was answered, so the checkpoint is in the middle of the turn
    known: LoggedBefore
    seed: list[BaseMessage] = field(default_factory=list)  # what the checkpoint has to begin with
    # Ended turns before this one whose history is not in order yet, by position.
    earlier: list[Transcript] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)  # user message ids of retried turns
    unrepaired: list[UUID] = field(default_factory=list)  # the runs of both
    order: list[str] = field(default_factory=list)  # user message ids of all turns, if there are such runs


def load(run: Run) -> TurnContext:
    """Read what the execution of a claimed run has to know. May be repeated."""
    continues = run.resumes_id is not None or run.answers is not None
    # One that has just begun has said nothing yet.
    said = read(run) if continues or run.claim > 1 else transcript.fold(run, ())
    brought = brought_messages.not_in_checkpoint(run.session)
    turn = TurnContext(run, said, continues, _logged_before(run, said), brought)
    _load_earlier(turn)
    return turn


def read(run: Run) -> Transcript:
    """What a run said, as one turn with the runs it resumes."""
    resumed = read(run.resumes) if run.resumes is not None else None
    return transcript.fold(run, RunEvent.objects.filter(run=run).order_by("seq"), resumed)


@dataclass(frozen=True, slots=True)
class Start:
    """How a graph is started."""

    input: Any  # the user's message, the answers, or nothing but its checkpoint
    open_tasks: Collection[str] = ()  # of the root graph, in the checkpoint it goes on from
    saved: SavedMessages = ()  # what the checkpoint holds of a turn that resumes


async def begin(
    graph: CompiledStateGraph[Any, Any, Any, Any], saver: FencedSaver, turn: TurnContext
) -> Start:
    """Bring the history into order before the turn's first step. May be repeated."""
    if turn.unrepaired:
        saver.by = By.REPAIR
        await repair_earlier(graph, turn)
        saver.by, saver.begun = By.GRAPH, turn.run.message_id
    start = await _start(graph, turn)
    if turn.run.resumes_id is None:
        return start
    return replace(start, saved=await saved_messages(graph, turn))


async def repair_earlier(graph: CompiledStateGraph[Any, Any, Any, Any], turn: TurnContext) -> None:
    """Bring the turns before this one into order.

    This is the one place where that happens after an ending without its execution, and where a retry goes
    back. A turn that resumes or was answered finds them in order, unless it died before it came here. If it
    is under way, its checkpoint must stay as it is: a repair would close its calls.
    """
    if turn.continues and await _is_under_way(graph, turn):
        return
    session_id = turn.run.session_id
    await repair(graph, session_id, turn.earlier, order=turn.order, drop=turn.dropped, brought=turn.seed)
    await in_thread(endings.mark_repaired, turn.unrepaired)


async def _is_under_way(graph: CompiledStateGraph[Any, Any, Any, Any], turn: TurnContext) -> bool:
    saved = await root_state.read(graph, root_state.root_of(turn.run.session_id))
    return root_state.has_begun(saved.state, turn.run.message_id)


async def repair_own(graph: CompiledStateGraph[Any, Any, Any, Any], run: Run) -> None:
    """Bring a turn that is about to end into order, once all it said is in the log."""
    said, brought = await in_thread(lambda: (read(run), brought_messages.not_in_checkpoint(run.session)))
    await repair(graph, run.session_id, [said], brought=brought)


async def _start(graph: CompiledStateGraph[Any, Any, Any, Any], turn: TurnContext) -> Start:
    run = turn.run
    message = HumanMessage(run.input, id=run.message_id)
    if not turn.continues and not turn.seed:
        return Start({"messages": [message]})
    state = (await root_state.read(graph, root_state.root_of(run.session_id))).state
    stored = state_messages.messages_of(state)
    # One that continues may have died before its first checkpoint.
    if not turn.continues or not root_state.has_begun(state, run.message_id):
        return Start({"messages": [*brought_messages.to_prepend(turn.seed, stored), message]})
    answers = await in_thread(_answers, run)
    asked = {interrupt.id for interrupt in state.interrupts}
    given = {question: value for question, value in answers.items() if question in asked}
    open_tasks = [f"{task.name}:{task.id}" for task in state.tasks]
    return Start(Command(resume=given) if given else None, open_tasks)


async def pending_questions(graph: CompiledStateGraph[Any, Any, Any, Any], run: Run) -> list[dict[str, Any]]:
    """What the graph asks, in the order of its tasks."""
    state = (await root_state.read(graph, root_state.root_of(run.session_id))).state
    return [question_of(interrupt) for interrupt in state.interrupts]


async def saved_messages(graph: CompiledStateGraph[Any, Any, Any, Any], turn: TurnContext) -> SavedMessages:
    """What the checkpoint holds of a turn that resumes, by the namespace of the graph that said it.

    A step is saved before its events are committed, so a crash may leave there what no log has.
    """
    saved = await root_state.read(graph, root_state.root_of(turn.run.session_id), subgraphs=True)
    state = saved.state
    found = [((), state_messages.messages_of(state)), *state_messages.messages_of_subgraphs(state)]
    return [(namespace, _of_turn(turn, messages)) for namespace, messages in found]


def _of_turn(turn: TurnContext, messages: list[BaseMessage]) -> list[BaseMessage]:
    """What follows the turn's user message.

    A subgraph that was not given that message may remember earlier turns. Of its messages only the results of
    tools are known to belong to this turn.
    """
    begin = next((i for i, message in enumerate(messages) if message.id == turn.said.user.id), None)
    if begin is None:
        return [message for message in messages if isinstance(message, ToolMessage)]
    return messages[begin:]


def _chain(run: Run) -> list[UUID]:
    """A run and those that it resumes."""
    return [run.id, *(_chain(run.resumes) if run.resumes is not None else ())]


def _load_earlier(turn: TurnContext) -> None:
    first = turn.run
    while first.resumes is not None:
        first = first.resumes
    for one in statements.unrepaired_runs(first.session_id, first.position):
        turn.unrepaired.append(one.id)
        if one.resolution == Resolution.RETRIED:
            if one.message_id not in turn.dropped:
                turn.dropped.append(one.message_id)
        elif one.resolution != Resolution.RESUMED:  # those are read with the run that resumed them
            turn.earlier.append(read(one))
    if turn.unrepaired:
        begun = Run.objects.filter(session=first.session_id, resumes=None, position__isnull=False)
        turn.order = list(begun.order_by("position").values_list("message_id", flat=True))


def _answers(run: Run) -> dict[str, Any]:
    answers = _answers(run.resumes) if run.resumes is not None else {}
    return answers | (run.answers or {})


def _logged_before(run: Run, said: Transcript) -> LoggedBefore:
    calls = []
    dumped = tool_calls.kept(_chain(run)) if any(call.was_answered for call in said.calls) else {}
    kept: dict[str, Kept] = {}
    for call in said.calls:
        if (whole := dumped.get(lookup_key(call.id))) is not None:
            kept[call.id] = Kept.load(whole)
        elif call.was_answered:
            text, status = (call.result, "success") if call.error is None else (call.error, "error")
            kept[call.id] = Kept(ToolMessage(text or "", tool_call_id=call.id, name=call.name, status=status))
        # An open call of a resumed run is begun again by this one, and logged as begun.
        is_own = run.resumes_id is None or not call.is_open
        calls.append(
            CallState(
                call.id,
                call.message,
                call.name,
                call.args,
                started=call.started and is_own,
                ended=not call.is_open,
                counted=call.started,
                may_have_begun=not is_own and (call.started or call.may_have_begun),
            )
        )
    told = {
        message.id: Told(message.text, any(call.was_answered for call in message.calls), message.task)
        for message in said.messages
        if message.audience == Audience.ANSWER and message.status != "streaming"
    }
    return LoggedBefore(
        messages=frozenset(message.id for message in said.messages if message.status == "complete"),
        calls=tuple(calls),
        kept=kept,
        told=told,
    )

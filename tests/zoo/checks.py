"""After each life: what is said of it agrees with the ledger."""

from collections import Counter

from langchain_core.messages import BaseMessage

from runs import operations
from runs.foundation.database import in_thread
from runs.log import transcript
from runs.models import Run, ToolCall
from runs.states import TERMINAL_TYPES, Effect, Resolution, RunStatus
from tests.fakes.history import unsendable
from tests.runs.waiting import PATIENCE, log_of, terminal
from tests.zoo.ledger import Entry
from tests.zoo.lives import NEXT, Life

# Seconds that an accepted cancel takes at most until it has reached everything.
AT_ONCE = 0.3 * PATIENCE


async def agrees(life: Life) -> None:
    """Log, effects, figures and history agree with the ledger. The turn has ended."""
    faults = [
        *await _in_effects(life),
        *await _in_log(life),
        *await _in_figures(life),
        *await _in_history(life),
    ]
    assert not faults, "\n".join(faults)


async def next_turn_completes(life: Life) -> None:
    """And so do those behind it. What was said before stays said, and each word is where it was heard."""
    before = await _read(life)
    for _ in range(3):
        run = await in_thread(operations.start_turn, life.owner, life.session, NEXT)
        ended = await terminal(run["id"])
        assert ended.status == "completed", f"the next turn: {ended.status}, {ended.error_message}"
        faults = _in_messages(await life.state())
        assert not faults, "\n".join(faults)
    after = await _read(life)
    assert after[: len(before)] == before, "what was said has changed"
    assert after == await _heard(life), "who listened heard something else than who reads"


async def _read(life: Life) -> list[tuple[str, str]]:
    """(text, for whom) of each message, as it is read."""
    history = await operations.history(life.owner, life.session, audience=None)
    return [(message["text"], message["audience"]) for message in history["messages"]]


async def _heard(life: Life) -> list[tuple[str, str]]:
    """The same, of who listened to all events, and takes runs that go on with a turn as one with it."""
    turns: dict[str, transcript.Transcript] = {}
    async for run in (
        Run.objects.filter(session__id=life.session)
        .exclude(resolution=Resolution.RETRIED)
        .order_by("position")
    ):
        turn = transcript.fold(run, await log_of(run.id), turns.get(run.message_id))
        if run.resolution == Resolution.DISMISSED and run.finished_at:
            transcript.add_note(turn, run.finished_at)
        turns[run.message_id] = turn
    heard: list[tuple[str, str]] = []
    for turn in turns.values():
        heard.append((turn.user.text, "answer"))
        heard += [(message.text, message.audience) for message in turn.messages]
    return heard


def nothing_started_after(life: Life, moment: float) -> None:
    """A thread may come to one more piece of the stream it reads. A function that is no tool cannot be
    refused.
    """
    late = [entry for entry in life.entries() if entry.at > moment and _is_start(life, entry)]
    if [entry.what for entry in late] == ["llm.chunk"] and late[0].thread != "MainThread":
        return
    assert not late, f"started after the stop: {[entry.point for entry in late]}"


async def effects_are_known(life: Life) -> None:
    """What has ended, late or not, is done, but for what fails or cannot be seen."""
    unknown = life.graph.functions | life.graph.repeats
    entries = life.entries()
    ended = {entry.call for entry in entries if entry.what == "tool.end" and entry.name not in unknown}
    rows = await in_thread(list, ToolCall.objects.filter(run__id__in=life.runs))
    assert ended <= {row.args.get("call") for row in rows if row.effect == Effect.DONE}


def _is_start(life: Life, entry: Entry) -> bool:
    if entry.name in life.graph.functions:
        return False
    return entry.what in ("llm.start", "llm.chunk", "tool.start")


def nothing_ran_twice(life: Life) -> None:
    """No tool was started twice with the same task, since nobody allowed it."""
    tasks = Counter(
        (entry.name, entry.word) for entry in _starts(life) if entry.name not in life.graph.repeats
    )
    twice = {task: times for task, times in tasks.items() if times > 1}
    assert not twice, f"ran again without being allowed to: {twice}"


def _starts(life: Life) -> list[Entry]:
    return [entry for entry in life.entries() if entry.what == "tool.start"]


async def _in_effects(life: Life) -> list[str]:
    started = {entry.call for entry in _starts(life)}
    ended = {entry.call for entry in life.entries() if entry.what == "tool.end"}
    faults = []
    rows = await in_thread(
        lambda: list(ToolCall.objects.filter(run__id__in=life.runs).order_by("run__position"))
    )
    last = {row.args["call"]: row for row in rows if "call" in row.args}  # of each call, where it was last
    for call, row in last.items():
        if row.effect == Effect.NONE and call in started:
            faults.append(f"effect none of {row.name} {row.args['word']}, which started")
        if row.effect == Effect.DONE and call not in ended:
            faults.append(f"effect done of {row.name} {row.args['word']}, which did not end")
        if row.effect is None:
            faults.append(f"no effect of {row.name} {row.args['word']}")
    for entry in _starts(life):
        if entry.call not in last:
            faults.append(f"no row of {entry.name} {entry.word}, which started")
    return faults


async def _in_log(life: Life) -> list[str]:
    faults, told = [], set()
    for run in life.runs:
        log = await log_of(run)
        if [event.seq for event in log] != list(range(1, len(log) + 1)):
            faults.append("the log has holes")
        if [event.type in TERMINAL_TYPES for event in log] != [False] * (len(log) - 1) + [True]:
            faults.append("the log does not end with its one terminal event")
        told |= {event.data["args"].get("call") for event in log if event.type == "tool.started"}
    for entry in _starts(life):
        if entry.call not in told and entry.name not in life.graph.functions:
            faults.append(f"no tool.started of {entry.name} {entry.word}")
    return faults


async def _in_figures(life: Life) -> list[str]:
    faults = []
    for number, run_id in enumerate(life.runs, 1):
        run = await in_thread(Run.objects.get, id=run_id)
        entries = life.entries(run_id)
        calls = sum(entry.what == "llm.start" for entry in entries)
        if run.llm_calls != calls:
            faults.append(f"run {number} counts {run.llm_calls} LLM calls of {calls}")
        if life.graph.functions and run.status != RunStatus.COMPLETED:
            continue  # a function that was cut is counted by nobody
        starts = [event.data for event in await log_of(run_id) if event.type == "tool.started"]
        started = [start["name"] for start in starts]
        own = [start for start in starts if start["name"] not in life.graph.foreign]
        committed = {start["args"].get("call") for start in own} - {None}
        tools = len({entry.call for entry in entries if entry.what == "tool.start"})
        tools += sum(name in life.graph.foreign for name in started)
        if run.status == RunStatus.INTERRUPTED:  # killed between the commit of a start and the start
            tools += len(committed - {entry.call for entry in entries if entry.what == "tool.start"})
        if run.tool_calls != tools:
            faults.append(f"run {number} counts {run.tool_calls} tool calls of {tools}")
    return faults


async def _in_history(life: Life) -> list[str]:
    last = await in_thread(Run.objects.get, id=life.runs[-1])
    if not last.repaired:
        return []  # the next turn does it, or a resume goes on from it
    return _in_messages(await life.state())


def _in_messages(messages: list[BaseMessage]) -> list[str]:
    fault = unsendable(messages, user_after_tool=False)
    faults = [fault] if fault else []
    if any(message.type == "ai" and "inner thinks." in message.text for message in messages):
        faults.append("an inner agent's words are among the messages of its parent")
    return faults

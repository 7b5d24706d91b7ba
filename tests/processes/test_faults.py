"""A load of turns over several processes while everything breaks; then all of it is accounted for.

``FAULT_SECONDS`` is for how long things break; without it the test is left out. ``FAULT_SEED``
is what the choices come from.
"""

import asyncio
import os
import random
import time
from collections import Counter
from datetime import datetime

import pytest

from tests.chance import seed
from tests.fakes import Marks, Script, ScriptedProvider
from tests.processes.aftermath import Aftermath, Findings, Leftovers
from tests.processes.deployment import DRAIN, deployment
from tests.processes.faults import Injector
from tests.processes.load import Client, Conversation, Figures
from tests.processes.turns import AGENTS, answer

SECONDS = float(os.environ.get("FAULT_SECONDS", "60"))
SESSIONS = 2  # of each user
# Seconds from the last fault until everything has come to rest.
REST = 60 * (3 if os.environ.get("CI") else 1)


@pytest.mark.cluster
@pytest.mark.faults
@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 600)
async def test_every_turn_is_accounted_for_while_everything_breaks(tmp_path):
    choices = seed("FAULT_SEED")
    provider = ScriptedProvider(Script(respond=answer), strict_user_after_tool=True)
    with provider.in_thread():
        async with deployment(tmp_path, provider, AGENTS) as cluster:
            figures, findings = Figures(), Findings()
            conversations = [
                Conversation(
                    Client(cluster, token, random.Random(f"{choices} client {user} {number}"), figures),
                    list(AGENTS)[(user + number) % len(AGENTS)],
                    f"{choices} {user} {number}",
                )
                for user, token in enumerate(cluster.tokens)
                for number in range(SESSIONS)
            ]
            injector = Injector(cluster, choices, figures)
            watching = asyncio.create_task(cluster.watch_workers())
            try:
                await put_under_load(conversations, injector)
                print(f"{figures.faults.total()} faults; now everything is let come to rest")
                rested = await come_to_rest(conversations, findings)
                refused = [call for call in provider.calls if call.outcome == "refused"]
                findings.check(not refused, len(refused), "histories were refused by the provider")
                aftermaths = await account(cluster, conversations, provider, findings)
            finally:
                watching.cancel()
                for conversation in conversations:
                    await conversation.close()
                    await conversation.client.http.aclose()
            check_processes(cluster, findings)
            ours = figures.answers[500] + figures.answers["internal"]
            findings.check(not ours, ours, "answers told of a fault of ours, not to try again")
            check_marks(Marks(tmp_path / "marks"), conversations, findings)
            report(figures, aftermaths, rested, slowest_recovery(cluster, injector, aftermaths))
    assert not findings, f"{len(findings)} findings:\n" + "\n".join(findings[:40])


async def put_under_load(conversations, injector):
    """Use everything, break everything, then let what was begun be said to its end."""
    await asyncio.gather(*(conversation.open() for conversation in conversations))
    stopped = asyncio.Event()
    async with asyncio.TaskGroup() as working:
        for conversation in conversations:
            working.create_task(conversation.live(stopped))
        await injector.inject(SECONDS)
        stopped.set()


async def come_to_rest(conversations, findings):
    """Decide about whatever was interrupted, until every session is idle; the seconds it took."""
    began = time.monotonic()
    for conversation in conversations:
        for follower in conversation.followers:
            follower.calm = True
    stopped = asyncio.Event()
    stopped.set()
    rested = await asyncio.gather(*(one.rest(stopped, REST) for one in conversations))
    for conversation, is_idle in zip(conversations, rested, strict=True):
        findings.check(
            is_idle, "session", conversation.id, "did not come to rest:", await conversation.shown()
        )
    return time.monotonic() - began


async def account(cluster, conversations, provider, findings):
    """All checks; the aftermath of each conversation."""
    aftermaths = [Aftermath(conversation, findings) for conversation in conversations]
    await asyncio.gather(*(one.look() for one in aftermaths))
    await asyncio.gather(*(one.check_followers(REST / 2) for one in aftermaths))
    leftovers = Leftovers(cluster)
    await asyncio.gather(*(one.check_next(provider) for one in aftermaths))
    for conversation in conversations:
        await conversation.close()
        await conversation.client.http.aclose()
    await leftovers.check(findings, 30)
    for conversation in conversations:
        conversation.client.reopen()
    await asyncio.gather(*(one.check_unchanged() for one in aftermaths))
    return aftermaths


def check_processes(cluster, findings):
    for slot in cluster.slots:
        for words in slot.unasked:
            findings.check(False, "a process left by itself:", words)
        for code, seconds in slot.leaves:
            findings.check(code == 0, slot.name, "left with", code)
            findings.check(seconds < DRAIN + 5, slot.name, "took", round(seconds, 1), "s to leave")


def check_marks(marks, conversations, findings):
    """What had finished was not done again, unless a user had it done again."""
    done = Counter(marks.read())
    for conversation in conversations:
        for text in conversation.accepted.values():
            times, allowed = done[text.split()[1]], 1 + conversation.again[text]
            findings.check(times <= allowed, "the tool of", text, "ran", times, "times, not", allowed)


def slowest_recovery(cluster, injector, aftermaths):
    """The longest time from the loss of a worker to the end of what it executed, in seconds."""
    slowest = 0.0
    for log in (log for one in aftermaths for log in one.logs.values()):
        end = log[-1]
        cancellation = end["data"].get("cancellation") or {}
        if end["data"].get("reason") != "worker_lost" and cancellation.get("outcome") != "reconciled":
            continue
        worker = next((event["data"]["worker"] for event in log if event["type"] == "run.started"), None)
        at = datetime.fromisoformat(end["at"]).timestamp()
        losses = [loss for loss in injector.lost.get(cluster.seen.get(worker), ()) if loss < at]
        if losses:
            slowest = max(slowest, at - losses[-1])
    return slowest


def report(figures, aftermaths, rested, recovery):
    """Print what happened."""
    runs = [run for one in aftermaths for run in one.runs]
    events = sum(len(log) for one in aftermaths for log in one.logs.values())
    routes = sum((one.of.routes for one in aftermaths), Counter())
    refused = sum(len(one.of.refused) for one in aftermaths)
    accepting = sorted(figures.accepting)
    print(f"{len(aftermaths)} sessions, {len(runs)} turns: {tally(run['status'] for run in runs)}")
    print(f"messages accepted: {tally(routes.elements())}, refused: {refused}; accepting took", end=" ")
    print(f"{accepting[len(accepting) // 2]:.2f} s in the median, {accepting[-1]:.1f} s at most")
    print(f"{figures.faults.total()} faults: {dict(sorted(figures.faults.items()))}")
    print(f"cancels {dict(figures.cancels)}, decisions {dict(figures.decisions)}")
    print(
        f"{figures.reconnects} reconnects; cuts {dict(figures.cuts)}; sockets closed {dict(figures.closes)}"
    )
    print(f"answers to be asked for again: {dict(figures.answers)}")
    print(f"{events} events in the logs, {figures.events} got by followers")
    print(
        f"slowest recovery {recovery:.1f} s, longest outage {max(figures.outages, default=0):.1f} s,", end=" "
    )
    print(f"at rest {rested:.1f} s after the last fault")


def tally(words):
    return dict(sorted(Counter(words).items()))

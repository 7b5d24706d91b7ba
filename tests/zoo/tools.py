"""Tools that write the ledger. Each gets a word, and the id of its call, however it is run."""

import time
from collections.abc import Callable

from langchain_core.tools import BaseTool, tool
from langgraph.types import interrupt

from tests.zoo.ledger import Ledger


class Unlucky(Exception):
    """What ``flaky`` raises."""


def note(ledger: Ledger) -> BaseTool:
    @tool
    def note(word: str, call: str) -> str:
        """Note a word; it blocks its thread."""
        ledger.write("tool.start", "note", call, word)
        ledger.write("tool.end", "note", call, word)
        return f"{word} is noted"

    return note


def look(ledger: Ledger) -> BaseTool:
    @tool
    async def look(word: str, call: str) -> str:
        """Look for a word, on the loop."""
        await ledger.awrite("tool.start", "look", call, word)
        await ledger.awrite("tool.end", "look", call, word)
        return f"{word} is found"

    return look


def remember(ledger: Ledger) -> Callable[[str, str], str]:
    """A function that is no tool: a node calls it."""

    def remember(word: str, call: str) -> str:
        ledger.write("tool.start", "remember", call, word)
        ledger.write("tool.end", "remember", call, word)
        return f"{word} is remembered"

    return remember


def flaky(ledger: Ledger) -> BaseTool:
    @tool
    def flaky(word: str, call: str) -> str:
        """Fail at the first try; after a cancel, a while later."""
        from runs.token import cancel_token

        ledger.write("tool.start", "flaky", call, word)
        tries = ledger.count(lambda entry: entry.what == "tool.start" and entry.call == call)
        if cancel_token().cancelled:
            time.sleep(0.1)
        ledger.write("tool.end", "flaky", call, word)
        if tries == 1:
            raise Unlucky("not at the first try")
        return f"{word} worked"

    return flaky


def helper(ledger: Ledger, ask_agent: Callable[[str], str]) -> BaseTool:
    @tool
    def helper(word: str, call: str) -> str:
        """Let another agent do it, and block a thread meanwhile."""
        ledger.write("tool.start", "helper", call, word)
        answer = ask_agent(word)
        ledger.write("tool.end", "helper", call, word)
        return answer

    return helper


def ask(ledger: Ledger) -> BaseTool:
    @tool
    def ask(word: str, call: str) -> str:
        """Ask the user."""
        ledger.write("tool.start", "ask", call, word)
        answer = interrupt({"question": f"{word}?", "options": ["yes", "no"]})
        ledger.write("tool.end", "ask", call, word)
        return f"The user says {answer}."

    return ask

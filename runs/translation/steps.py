"""Which tasks of a graph have begun and ended, to tell what cannot have begun and what runs inside a tool.

A plain node may run tools where nobody sees it. But a call cannot have begun as long as nothing has begun
behind the task whose message asks for it.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID


class GraphSteps:
    """The tasks of one execution, each by the namespace that its checkpoints have. Used on the event loop."""

    def __init__(self) -> None:
        self._begun: dict[str, int] = {}  # how many had begun when it began
        self._ended: dict[str, int] = {}  # how many had begun when it ended
        self._open: dict[UUID, str] = {}  # by the id of the outermost chain of the task
        self._in_tools: set[UUID] = set()  # executions of tools, and of chains that run inside one
        self._tool_tasks: set[str] = set()  # tasks of graphs that a tool runs
        self._numbers: dict[str, int] = {}  # the step of each task
        self.latest = -1  # the latest step of the root graph in which a task has begun

    def began(self, chain: UUID, parent: UUID | None, metadata: Mapping[str, Any]) -> None:
        """A chain begins; the first one of a task is the task's own."""
        if parent in self._in_tools:
            self._in_tools.add(chain)
        task = metadata.get("langgraph_checkpoint_ns")
        if isinstance(task, str) and task not in self._begun:
            self._begun[task] = len(self._begun)
            self._open[chain] = task
            self._numbers[task] = metadata.get("langgraph_step", -1)
            if "|" not in task:
                self.latest = max(self.latest, self._numbers[task])
            if parent in self._in_tools:
                self._tool_tasks.add(task)

    def is_over(self, task: str) -> bool:
        """Whether this task of the root graph was in a step that has ended, since a later one has begun."""
        return self._numbers.get(task, self.latest) < self.latest

    def tool_began(self, execution: UUID) -> None:
        """A tool begins."""
        self._in_tools.add(execution)

    def tool_ended(self, execution: UUID) -> None:
        """A tool has come to its end."""
        self._in_tools.discard(execution)

    def is_in_tool(self, parent: UUID | None, task: str | None = None) -> bool:
        """Whether what this chain calls, or this task does, is done by a tool."""
        return parent in self._in_tools or task in self._tool_tasks

    def ended(self, chain: UUID) -> None:
        """A chain has come to its end."""
        self._in_tools.discard(chain)
        if (task := self._open.pop(chain, None)) is not None:
            self._ended[task] = len(self._begun)

    def nothing_followed(self, task: str | None) -> bool:
        """Whether this task has ended, and none has begun since."""
        return task is not None and self._ended.get(task) == len(self._begun)

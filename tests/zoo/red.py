"""Lives that do not agree with the ledger yet, by kind, graph and point, each with the reason."""

_TWICE = "A call that a node runs by hand is counted as it runs, and again with its result."
_NONE = "A call that a node runs by hand is said to have had no effect, whatever ran."
_AGAIN = "A plain node is run again from its beginning, with the tools that it has run."

RED = {
    "whole: by hand": _TWICE,
    "cancelled and retried: by hand *": _TWICE,
    "killed and *: by hand *": _TWICE,
    "cancelled: by hand tool*": _NONE,
    "given up: by hand *": _NONE,
    "left: by hand *": _NONE,
    "deadline: by hand *": _NONE,
    "killed, by itself: loop llm.chunk outer 7": _AGAIN,
    "drained too late: loop *": _AGAIN,
    "drained too late: by hand *": _AGAIN,
}

"""Lives that do not agree with the ledger yet: a pattern of kind, graph and point, and the reason."""

_TWICE = "A call that a node runs by hand is counted as it runs, and again with its result."
_AGAIN = "A plain node is run again from its beginning, with the tools that it has run."
_INNER = "What an inner agent had said is put among the messages of its parent, when the turn is repaired."

RED = {
    "whole: by hand": _TWICE,
    "(cancelled|killed) and .*: by hand": _TWICE,
    "(killed, by itself|drained too late): loop llm.* outer 7": _AGAIN,
    "(cancelled|given up|left|deadline|forced|killed,.*|drained.*): (subagent|deep) tool.start note": _INNER,
    "cancelled while it waits: (subagent|deep)": _INNER,
    "(cancelled|given up|killed, by itself): supervisor tool": _INNER,
}

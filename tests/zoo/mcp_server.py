"""An MCP server over stdio with one tool. Its argument is the folder of the ledger."""

import sys
from pathlib import Path

from mcp.server.fastmcp import FastMCP

from tests.zoo.ledger import Ledger

server = FastMCP("zoo", log_level="ERROR")
ledger = Ledger(Path(sys.argv[1]))


@server.tool()
async def post(word: str, call: str) -> str:
    """Post a word."""
    await ledger.awrite("tool.start", "post", call, word)
    await ledger.awrite("tool.end", "post", call, word)
    return f"{word} is posted"


if __name__ == "__main__":
    server.run()

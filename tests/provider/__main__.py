"""``python -m tests.provider [--port N] [--lenient] [--user-after-tool-refused]``: serve until told to end.

Prints the base URL on the first line.
"""

import argparse
import asyncio
import signal

from tests.provider.server import ScriptedProvider


async def main(arguments: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    provider = ScriptedProvider(
        port=arguments.port,
        strict=not arguments.lenient,
        strict_user_after_tool=arguments.user_after_tool_refused,
    )
    async with provider:
        print(provider.base_url, flush=True)
        await stopped.wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.provider")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--lenient", action="store_true", help="take any history")
    parser.add_argument("--user-after-tool-refused", action="store_true")
    asyncio.run(main(parser.parse_args()))

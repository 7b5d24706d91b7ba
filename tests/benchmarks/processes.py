"""The processes of a benchmark: how they are ended, and what they have spent."""

import asyncio
import os
from contextlib import suppress
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, with all threads it has or had; in steps of a clock tick (10 ms)."""
    # Behind the command's name, which may hold anything, the fields from the third on.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


async def end(process: asyncio.subprocess.Process, seconds: float = 20) -> None:
    """Ask a process to leave, and make it leave when it takes too long."""
    if process.returncode is None:
        process.terminate()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await process.wait()
    if process.returncode is None:
        process.kill()
        await process.wait()

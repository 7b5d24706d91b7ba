"""Bring into order, now, what a crash or a lost signal left behind."""

import asyncio
from typing import Any

from django.core.management.base import BaseCommand
from django.db import connections

from runs.memory.checkpoints import process_checkpoints
from runs.recovery import sweep


class Command(BaseCommand):
    help = (
        "Does once what every server and worker does with each heartbeat: ends the runs of workers that are"
        " gone, settles overdue cancels, resumes or dismisses interrupted runs where their agent's policy is"
        " to do so, and finishes deletions that broke off. What is to be executed, a server or worker takes"
        " with its next heartbeat."
    )

    def handle(self, *args: Any, **options: Any) -> str:
        connections.close_all()  # this thread becomes the event loop's and must not hold one
        return str(asyncio.run(_recover()))


async def _recover() -> sweep.Swept:
    async with process_checkpoints() as checkpoints:
        return await sweep.recover(checkpoints)

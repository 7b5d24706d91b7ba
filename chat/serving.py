"""What the commands that serve have in common."""

from collections.abc import Callable
from contextlib import nullcontext

from channels.routing import get_default_application
from django.conf import settings
from django.db import connection, connections
from django.db.migrations.executor import MigrationExecutor

from chat import presence
from chat.server import CannotListen, EngineBroken, Server, bind
from chat.sole_server import AlreadyServed, sole_server
from runs.worker import Supervisor


class CannotServe(Exception):
    """The server cannot start; the message says why."""


def serve(host: str, port: int, *, prepare: Callable[[], None], on_listening: Callable[[int], None]) -> None:
    """Serve the project until told to leave.

    ``prepare`` is called when this is certain to be the only server and the port is free, ``on_listening``
    with the port when the first request can come. Raises CannotServe.
    """
    sole = sole_server(settings.DATA_DIR) if connection.vendor == "sqlite" else nullcontext()
    try:
        with sole, bind(host, port) as listener:
            prepare()
            connections.close_all()  # this thread becomes the event loop's and must not hold one
            Server(
                get_default_application(),
                listener,
                start_engine=Supervisor.start,
                drain_timeout=settings.RUNS_DRAIN_TIMEOUT,
                on_listening=on_listening,
                on_leaving=presence.leave,
            ).run()
    except (CannotListen, AlreadyServed, EngineBroken) as error:
        raise CannotServe(str(error)) from None


def require_migrated() -> None:
    """Raises CannotServe when the database lacks migrations."""
    executor = MigrationExecutor(connection)
    if executor.migration_plan(executor.loader.graph.leaf_nodes()):
        raise CannotServe("The database is not up to date. Run `manage.py migrate` first.")


def address(host: str, port: int) -> str:
    """The web address of a server on ``host`` and ``port``."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

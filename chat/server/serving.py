"""Start the server. ``serve`` and ``quickstart`` share this."""

from collections.abc import Callable
from contextlib import nullcontext

from channels.routing import get_default_application
from django.conf import settings
from django.db import connection, connections

from chat.access import open_connections
from chat.server.listener import CannotListen, bind
from chat.server.lock_file import AlreadyRunning, exclusive
from chat.server.server import EngineBroken, Server
from runs.foundation.database import is_migrated
from runs.lifecycle import dispatch, liveness
from runs.worker.engine import Engine
from runs.worker.supervisor import Supervisor


class CannotServe(Exception):
    """The server cannot start; the message says why."""


def serve(host: str, port: int, *, prepare: Callable[[], None], on_listening: Callable[[int], None]) -> None:
    """Serve the project until told to leave.

    ``prepare`` is called when this is certain to be the only server and the port is free, ``on_listening``
    with the port when the first request can come. Raises CannotServe.
    """
    lock = exclusive(settings.DATA_DIR / "server.lock") if connection.vendor == "sqlite" else nullcontext()
    try:
        with lock, bind(host, port) as listener:
            prepare()
            _require_no_other()
            connections.close_all()  # this thread becomes the event loop's and must not hold one
            Server(
                get_default_application(),
                listener,
                start_engine=Engine.start if dispatch.is_shared() else Supervisor.start,
                drain_timeout=settings.RUNS_DRAIN_TIMEOUT,
                on_listening=on_listening,
                on_leaving=open_connections.end_all,
            ).run()
    except AlreadyRunning as error:
        raise CannotServe(
            f"Process {error.process} already serves {settings.DATA_DIR}, and with SQLite there can be only "
            "one server. Stop it, or set DATABASE_URL to use PostgreSQL."
        ) from None
    except (CannotListen, EngineBroken) as error:
        raise CannotServe(str(error)) from None


def _require_no_other() -> None:
    """Raises CannotServe when another process executes turns, which this one would do, too."""
    if dispatch.is_shared() or connection.vendor == "sqlite":
        return
    if (other := liveness.seen_beating()) is not None:
        raise CannotServe(
            f"Process {other} already executes turns on this database, and with DISPATCH=inprocess there can "
            "be only one that does. Stop it, or set DISPATCH=procrastinate for all processes."
        )


def require_migrated() -> None:
    """Raises CannotServe when the database lacks migrations."""
    if not is_migrated():
        raise CannotServe("The database is not up to date. Run `manage.py migrate` first.")

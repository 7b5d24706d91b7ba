"""Django's PostgreSQL with a pool that survives the end of all its connections."""

from typing import Any

from django.db.backends.postgresql import base
from psycopg import OperationalError


class DatabaseWrapper(base.DatabaseWrapper):
    """Gives out connections that answer, also after the server ended all of them.

    The pool's own check waits longer and longer between one dead connection and the next: a handful of them
    take the time that a request has. Here the first one that is found dead renews the whole pool.
    """

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        connection = super().get_new_connection(conn_params)
        pool = self.pool
        if pool is None:
            return connection
        try:
            pool.check_connection(connection)
        except OperationalError:
            pool.putconn(connection)
            pool.drain()
            connection = super().get_new_connection(conn_params)
        return connection

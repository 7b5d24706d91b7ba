"""The socket and the address that a server listens on."""

import socket


class CannotListen(Exception):
    """The address cannot be listened on; the message says why."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to ``host`` and ``port`` (0 picks a free one), which takes no connections yet."""
    listener = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        if listener is not None:
            listener.close()
        raise CannotListen(f"Cannot listen on {host}:{port}: {error.strerror}.") from None
    return listener


def address(host: str, port: int) -> str:
    """The web address of a server on ``host`` and ``port``."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

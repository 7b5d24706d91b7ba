"""The address and the scheme of a client behind a reverse proxy."""

from collections.abc import Sequence
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Any

_SECURE = {"http": "https", "websocket": "wss"}


class TrustedProxy:
    """ASGI middleware: takes a client's address and scheme from the headers of proxies we know.

    X-Forwarded-For is read from its end, where the nearest proxy writes, up to the first address that is
    none of ours: whatever stands before it was written by the client. From anybody else these headers
    mean nothing and go no further.
    """

    def __init__(self, application: Any, proxies: Sequence[IPv4Network | IPv6Network]) -> None:
        self._application = application
        self._proxies = proxies

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        await self._application(self._without_proxies(scope), receive, send)

    def _without_proxies(self, scope: dict[str, Any]) -> dict[str, Any]:
        addresses: list[str] = []
        scheme = ""
        headers = []
        for name, value in scope["headers"]:
            if name == b"x-forwarded-for":
                addresses += [part.strip() for part in value.decode("latin1").split(",")]
            elif name == b"x-forwarded-proto":
                scheme = value.decode("latin1").strip().lower()
            elif not name.startswith(b"x-forwarded-"):
                headers.append((name, value))
        scope = {**scope, "headers": headers}
        if scope.get("client") and self._is_ours(scope["client"][0]):
            client = next((address for address in reversed(addresses) if not self._is_ours(address)), None)
            if client and _is_address(client):
                scope["client"] = [client, 0]
            if scheme == "https":
                scope["scheme"] = _SECURE[scope["type"]]
        return scope

    def _is_ours(self, address: str) -> bool:
        return _is_address(address) and any(ip_address(address) in network for network in self._proxies)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True

"""Lets graphs have nodes that are graphs on another server.

LangGraph hands the stream modes of the graph around it on to a ``RemoteGraph``. A server that does not know
one of them refuses the call, and what it streams comes as plain data, which is no chunk of our stream. So a
remote graph gets none of our modes. What it says stands in the state when its step ends, and is told then.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import httpx
from django.conf import settings
from langgraph.pregel.remote import RemoteException, RemoteGraph

from runs.states import ErrorCode
from runs.stopping.cancel_token import cancel_token

_get_stream_modes, _validate_client = RemoteGraph._get_stream_modes, RemoteGraph._validate_client
_stream: Any = RemoteGraph.stream
_astream: Any = RemoteGraph.astream


class RemoteGraphLost(RemoteException):
    """A remote graph does not say how its run ended."""


def adapt() -> None:
    """Adapt LangGraph's class. Doing it again is harmless."""
    remote: Any = RemoteGraph
    remote._get_stream_modes = _own_modes
    remote._validate_client = lambda self: _Client(_validate_client(self))
    remote.stream = _stream_in_thread
    remote.astream = _stream_on_loop


def _own_modes(self: RemoteGraph, stream_mode: Any, config: Any, default: Any = "updates") -> Any:
    modes, *others = _get_stream_modes(self, stream_mode, None, default)
    # Words of its models are signs of life. They go no further.
    return [*modes, *({"messages-tuple"} - set(modes))], *others


def _stream_in_thread(self: RemoteGraph, *args: Any, **options: Any) -> Iterator[Any]:
    token = cancel_token()
    try:
        for chunk in _stream(self, *args, **_own_end(options)):
            token.raise_if_cancelled()
            yield chunk
    except (RemoteException, httpx.HTTPError) as error:
        _explain(error)
        raise


async def _stream_on_loop(self: RemoteGraph, *args: Any, **options: Any) -> AsyncIterator[Any]:
    try:
        async with aclosing(_astream(self, *args, **_own_end(options))) as chunks:
            async for chunk in chunks:
                yield chunk
    except (RemoteException, httpx.HTTPError) as error:
        _explain(error)
        raise


def _own_end(options: dict[str, Any]) -> dict[str, Any]:
    """A cancel closes the stream. With this, the server ends its run then."""
    return {"on_disconnect": "cancel", **options}


class _Client:
    """A client whose runs are watched."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self.runs = _Runs(client.runs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


class _Runs:
    """The runs of a client. A stream that falls silent or ends before its run does is an error.

    Comments that keep a connection open are no life. A remote graph may be busy with a tool.
    """

    def __init__(self, runs: Any) -> None:
        self._runs = runs

    async def stream(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        limit = max(settings.RUNS_IDLE_TIMEOUT, settings.RUNS_TOOL_TIMEOUT)
        ended = False
        async with aclosing(self._runs.stream(*args, **options)) as parts:
            while True:
                try:
                    async with asyncio.timeout(limit):
                        part = await anext(parts)
                except StopAsyncIteration:
                    break
                except TimeoutError:
                    raise RemoteGraphLost(f"A remote graph said nothing for {limit:g} seconds.") from None
                ended = ended or part.event == "end"
                yield part
        if not ended:
            raise RemoteGraphLost("A remote graph broke off.")


def _explain(error: Any) -> None:
    """Note what the user is told of it, unless the agent makes something else of it."""
    error.error_code = ErrorCode.PROVIDER
    error.user_message = _sentence(error)


def _sentence(error: Exception) -> str:
    if isinstance(error, RemoteGraphLost):
        return str(error)
    if isinstance(error, RemoteException):
        return "A remote graph failed."
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout):
        return "A remote graph cannot be reached."
    match getattr(error, "status_code", None):
        case 401 | 403:
            return "A remote graph refused the credentials of this server."
        case int() as status if status >= 500:
            return f"A remote graph had an error of its own ({status})."
        case int() as status:
            return f"A remote graph refused the request ({status})."
        case _:
            return "A remote graph broke off."

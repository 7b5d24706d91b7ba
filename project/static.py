"""WhiteNoise as an asynchronous middleware."""

from collections.abc import Awaitable
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFilesMiddleware(WhiteNoiseMiddleware):
    """Serves static files from where they are installed.

    WhiteNoise's own middleware is synchronous: with it in the chain every request, streams and waiting
    calls included, would hold a thread until its response begins.
    """

    sync_capable = True
    async_capable = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if iscoroutinefunction(self.get_response):
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponseBase | Awaitable[HttpResponseBase]:
        if not iscoroutinefunction(self):
            return super().__call__(request)
        if request.path_info.startswith(self.static_prefix):
            return self._serve_or_pass_on(request)
        return self.get_response(request)

    async def _serve_or_pass_on(self, request: HttpRequest) -> HttpResponseBase:
        return await sync_to_async(self._find_and_serve)(request) or await self.get_response(request)

    def _find_and_serve(self, request: HttpRequest) -> HttpResponseBase | None:
        file = self.find_file(request.path_info) if self.autorefresh else self.files.get(request.path_info)
        return self.serve(file, request) if file is not None else None

    @staticmethod
    def serve(static_file: Any, request: HttpRequest) -> HttpResponseBase:
        """The file in one piece: it is small, and reading it bit by bit would block the event loop."""
        found = static_file.get_response(request.method, request.META)
        content = b""
        if found.file is not None:
            with found.file as file:
                content = file.read()
        response = HttpResponse(content, status=int(found.status))
        del response["content-type"]
        for name, value in found.headers:
            response[name] = value
        return response

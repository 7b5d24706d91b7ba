"""Whether a client wants events as a stream or as a page, read from its Accept header."""

from django.http import HttpRequest
from rest_framework.request import Request

EVENT_STREAM = "text/event-stream"
JSON = "application/json"


def names(request: Request | HttpRequest, media_type: str) -> bool:
    """Whether Accept names exactly this type; ``*/*`` names none."""
    return any(
        part.partition(";")[0].strip().lower() == media_type
        for part in request.headers.get("Accept", "").split(",")
    )

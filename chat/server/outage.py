"""What a page says while the database does not answer: a 503 and one sentence. It is no fault of ours."""

import logging

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin

from chat.api.errors import body
from runs.errors import DatabaseAway
from runs.foundation.database import AWAY

logger = logging.getLogger(__name__)


class DatabaseAwayMiddleware(MiddlewareMixin):
    """For all that is no API of ours, the admin included; an API's views answer for themselves."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """The answer to a view that the database failed; in JSON for scripts that ask for it."""
        if not isinstance(exception, AWAY):
            return None
        logger.warning("The database did not do what was asked of it: %s", exception)
        away, headers = DatabaseAway(), {"Retry-After": "1"}
        if request.get_preferred_type(["text/html", "application/json"]) == "application/json":
            return JsonResponse(body(away.code, away.message), status=away.status, headers=headers)
        # Without the request: whoever renders it must not ask the database who it is.
        return HttpResponse(render_to_string("503.html"), status=away.status, headers=headers)

"""A page answers 503 with one sentence while the database is unavailable."""

import logging

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.template.loader import render_to_string
from django.utils.deprecation import MiddlewareMixin

from chat.api.errors import body
from runs.errors import DatabaseUnavailable
from runs.foundation.database import DATABASE_UNAVAILABLE

logger = logging.getLogger(__name__)


class DatabaseUnavailableMiddleware(MiddlewareMixin):
    """For all pages, the admin included. The views of the APIs answer for themselves."""

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """The 503 when a view met the unavailable database; in JSON for a script that asks for it."""
        if not isinstance(exception, DATABASE_UNAVAILABLE):
            return None
        logger.warning("The database did not do what was asked of it: %s", exception)
        refusal, headers = DatabaseUnavailable(), {"Retry-After": "1"}
        if request.get_preferred_type(["text/html", "application/json"]) == "application/json":
            return JsonResponse(body(refusal.code, refusal.message), status=refusal.status, headers=headers)
        # Without the request: with it, context processors would ask the database for the user.
        return HttpResponse(render_to_string("503.html"), status=refusal.status, headers=headers)

"""The OpenAPI description and the page that shows it. Both are public: they tell of no data."""

from functools import cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.utils import extend_schema
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from chat.api.async_view import AsyncView
from runs.foundation.database import in_thread


@cache
def description() -> dict[str, Any]:
    """The OpenAPI document of everything under /api/."""
    document: dict[str, Any] = SchemaGenerator().get_schema(public=True)
    return document


class OpenApiRenderer(JSONRenderer):
    media_type = "application/vnd.oai.openapi+json"


class Schema(AsyncView):
    """The OpenAPI description of this API."""

    authentication_classes = ()
    permission_classes = ()
    renderer_classes = (OpenApiRenderer,)

    @extend_schema(exclude=True)
    async def get(self, request: Request) -> Response:
        return Response(await in_thread(description))


@require_safe
def docs(request: HttpRequest) -> HttpResponse:
    """The description as a page from which the API can be tried; its script is a file, as our policy asks."""
    return render(request, "api/docs.html")

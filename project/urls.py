"""Which app answers which addresses."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [
    path("admin/", admin.site.urls),
    path("api/", include("chat.api.urls")),
    path("v1/", include("chat.openai.urls")),
    path("", include("chat.urls")),
]

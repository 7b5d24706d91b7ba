"""Which app answers which addresses."""

from django.contrib import admin
from django.urls import include, path

from chat.monitoring import health, metrics
from runs.admin.dashboard import page

urlpatterns = [
    path("admin/dashboard/", page.view, name="dashboard"),
    path("admin/", admin.site.urls),
    path("api/", include("chat.api.urls")),
    path("v1/", include("chat.openai.urls")),
    path("healthz", health.healthz),
    path("readyz", health.readyz),
    path("metrics", metrics.metrics),
    path("", include("chat.urls")),
]

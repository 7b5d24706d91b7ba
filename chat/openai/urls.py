"""The addresses under /v1/."""

from django.urls import path, re_path

from chat.openai import views

app_name = "openai"
urlpatterns = [
    path("chat/completions", views.ChatCompletions.as_view(), name="chat_completions"),
    path("models", views.Models.as_view(), name="models"),
    path("models/<str:name>", views.Model.as_view(), name="model"),
    re_path("", views.nothing_here),
]

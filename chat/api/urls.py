"""The addresses under /api/. Ids are taken as they come: one that is no UUID is an unknown one."""

from django.urls import path, re_path

from chat.api import views

app_name = "api"
urlpatterns = [
    path("agents/", views.Agents.as_view(), name="agents"),
    path("sessions/", views.Sessions.as_view(), name="sessions"),
    path("sessions/<str:session_id>/", views.Session.as_view(), name="session"),
    path("sessions/<str:session_id>/history/", views.History.as_view(), name="history"),
    path("sessions/<str:session_id>/runs/", views.Runs.as_view(), name="runs"),
    path("sessions/<str:session_id>/cancel/", views.CancelSession.as_view(), name="cancel_session"),
    path("runs/<str:run_id>/", views.Run.as_view(), name="run"),
    path("runs/<str:run_id>/events/", views.Events.as_view(), name="events"),
    path("runs/<str:run_id>/cancel/", views.CancelRun.as_view(), name="cancel_run"),
    path("runs/<str:run_id>/answer/", views.Answer.as_view(), name="answer"),
    path("runs/<str:run_id>/resume/", views.Resume.as_view(), name="resume"),
    path("runs/<str:run_id>/retry/", views.Retry.as_view(), name="retry"),
    path("runs/<str:run_id>/dismiss/", views.Dismiss.as_view(), name="dismiss"),
    path("runs/<str:run_id>/force-cancel/", views.ForceCancel.as_view(), name="force_cancel"),
    path("runs/<str:run_id>/reconcile/", views.Reconcile.as_view(), name="reconcile"),
    path("workers/", views.Workers.as_view(), name="workers"),
    path("schema/", views.Schema.as_view(), name="schema"),
    path("docs/", views.docs, name="docs"),
    re_path("", views.nothing_here),
]

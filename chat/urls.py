"""The pages: login, chat, account."""

from django.contrib.auth import views as auth
from django.urls import URLPattern, URLResolver, include, path

from chat.pages import account, views

run = [
    path("cancel/", views.cancel_run, name="cancel"),
    path("answer/", views.answer, name="answer"),
    path("resume/", views.resume, name="resume"),
    path("retry/", views.retry, name="retry"),
    path("dismiss/", views.dismiss, name="dismiss"),
]

chat: list[URLPattern | URLResolver] = [
    path("", views.new_chat, name="new"),
    path("list/", views.list_of_sessions, name="list"),
    path("<uuid:session_id>/", views.session, name="session"),
    path("<uuid:session_id>/messages/", views.turns, name="turns"),
    path("<uuid:session_id>/send/", views.send, name="send"),
    path("<uuid:session_id>/stop/", views.stop, name="stop"),
    path("<uuid:session_id>/rename/", views.rename, name="rename"),
    path("<uuid:session_id>/delete/", views.delete, name="delete"),
    path("<uuid:session_id>/runs/<uuid:run_id>/", include(run)),
]

account_pages = [
    path("", account.overview, name="overview"),
    path("password/", account.change_password, name="password"),
    path("tokens/", account.create_token, name="create_token"),
    path("tokens/<int:token_id>/revoke/", account.revoke_token, name="revoke_token"),
]

urlpatterns = [
    path("", views.home, name="home"),
    path("favicon.ico", views.favicon, name="favicon"),
    path("login/", auth.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", auth.LogoutView.as_view(), name="logout"),
    path("chat/", include((chat, "chat"))),
    path("account/", include((account_pages, "account"))),
]

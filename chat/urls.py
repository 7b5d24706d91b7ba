"""The pages: login, chat, account."""

from django.contrib.auth import views as auth
from django.urls import URLPattern, URLResolver, include, path

from chat import account, pages

run = [
    path("cancel/", pages.cancel_run, name="cancel"),
    path("answer/", pages.answer, name="answer"),
    path("resume/", pages.resume, name="resume"),
    path("retry/", pages.retry, name="retry"),
    path("dismiss/", pages.dismiss, name="dismiss"),
]

chat: list[URLPattern | URLResolver] = [
    path("", pages.new_chat, name="new"),
    path("list/", pages.list_of_sessions, name="list"),
    path("<uuid:session_id>/", pages.session, name="session"),
    path("<uuid:session_id>/messages/", pages.turns, name="turns"),
    path("<uuid:session_id>/send/", pages.send, name="send"),
    path("<uuid:session_id>/stop/", pages.stop, name="stop"),
    path("<uuid:session_id>/rename/", pages.rename, name="rename"),
    path("<uuid:session_id>/delete/", pages.delete, name="delete"),
    path("<uuid:session_id>/runs/<uuid:run_id>/", include(run)),
]

account_pages = [
    path("", account.overview, name="overview"),
    path("password/", account.change_password, name="password"),
    path("tokens/", account.create_token, name="create_token"),
    path("tokens/<int:token_id>/revoke/", account.revoke_token, name="revoke_token"),
]

urlpatterns = [
    path("", pages.home, name="home"),
    path("favicon.ico", pages.favicon, name="favicon"),
    path("login/", auth.LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("logout/", auth.LogoutView.as_view(), name="logout"),
    path("chat/", include((chat, "chat"))),
    path("account/", include((account_pages, "account"))),
]

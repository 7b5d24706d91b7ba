"""The account page: who one is, one's password, and the API tokens of one's programs."""

from datetime import timedelta
from typing import Any

from django import forms
from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.contrib.auth.decorators import login_required
from django.contrib.auth.forms import PasswordChangeForm
from django.contrib.auth.models import AbstractBaseUser
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_POST

from chat.access import tokens


class TokenForm(forms.Form):
    """What a new token is called and how long it is valid."""

    name = forms.CharField(max_length=100, widget=forms.TextInput(attrs={"autocomplete": "off"}))
    days = forms.TypedChoiceField(
        label="Valid for",
        choices=[("30", "30 days"), ("90", "90 days"), ("365", "One year"), ("0", "Until revoked")],
        initial="90",
        coerce=int,
    )

    @property
    def lifetime(self) -> timedelta | None:
        """None: until revoked."""
        return timedelta(days=self.cleaned_data["days"]) or None


@never_cache
@login_required
@require_GET
def overview(request: HttpRequest) -> HttpResponse:
    return _page(request)


@never_cache
@login_required
@require_POST
def change_password(request: HttpRequest) -> HttpResponse:
    form = _PasswordForm(request.user, request.POST)
    if not form.is_valid():
        return _page(request, password_form=form, status=400)
    update_session_auth_hash(request, form.save())
    messages.success(request, "Your password is changed. You are logged out everywhere else.")
    return redirect("account:overview")


@never_cache
@login_required
@require_POST
def create_token(request: HttpRequest) -> HttpResponse:
    """The answer shows the token, once; it is in no address and no cache."""
    form = TokenForm(request.POST)
    if not form.is_valid():
        return _page(request, token_form=form, status=400)
    token = tokens.create_token(_user(request), form.cleaned_data["name"], form.lifetime)
    return _page(request, new_token=token)


@never_cache
@login_required
@require_POST
def revoke_token(request: HttpRequest, token_id: int) -> HttpResponse:
    if not tokens.revoke(_user(request), token_id):
        raise Http404
    messages.success(request, "The token is revoked.")
    return redirect("account:overview")


def _user(request: HttpRequest) -> AbstractBaseUser:
    return request.user  # type: ignore[return-value]  # login_required has seen to it


class _PasswordForm(PasswordChangeForm):
    """Django's, without taking the focus: it is not what this page is for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        del self.fields["old_password"].widget.attrs["autofocus"]


def _page(request: HttpRequest, *, status: int = 200, **context: Any) -> HttpResponse:
    shown = {
        "password_form": _PasswordForm(request.user),
        "token_form": TokenForm(),
        "tokens": tokens.tokens_of(_user(request)),
        "now": timezone.now(),
        **context,
    }
    return render(request, "pages/account.html", shown, status=status)

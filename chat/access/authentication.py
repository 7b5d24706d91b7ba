"""REST framework's authentication: by bearer token, or by session cookie with a CSRF token."""

from django.contrib.auth.models import AbstractBaseUser
from rest_framework import authentication
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.request import Request

from chat.access import tokens
from chat.models import ApiToken


class CsrfFailed(PermissionDenied):
    """The session cookie came without its CSRF token."""

    default_code = "csrf_failed"


def bearer_token(header: str) -> str | None:
    """The token in an Authorization header; None when the header is of another scheme or missing."""
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


class BearerAuthentication(authentication.BaseAuthentication):
    """``Authorization: Bearer <token>``. A token in the URL is not read, since URLs are logged."""

    def authenticate(self, request: Request) -> tuple[AbstractBaseUser, ApiToken] | None:
        token = bearer_token(request.headers.get("Authorization", ""))
        if token is None:
            return None
        row = tokens.recognise(token)
        if row is None:
            raise AuthenticationFailed("This token is not valid, or not any more.")
        tokens.note_use(row)
        return row.user, row

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class SessionAuthentication(authentication.SessionAuthentication):
    """The session cookie; every unsafe call needs the CSRF token with it."""

    def enforce_csrf(self, request: Request) -> None:
        try:
            super().enforce_csrf(request)
        except PermissionDenied as error:
            raise CsrfFailed(error.detail) from None

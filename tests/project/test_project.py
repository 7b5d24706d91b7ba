"""What the project puts around its apps: whom it believes about clients, and how static files are served."""

import tomllib
from ipaddress import ip_network

import pytest
from django.http import HttpResponse
from django.test import AsyncRequestFactory, RequestFactory

from project.proxy import TrustedProxy
from project.static import StaticFilesMiddleware
from runs import __version__
from tests import ROOT

STYLES = "/static/admin/css/base.css"


async def seen_through(proxies: list[str], *, peer: str, kind: str = "http", **headers: str) -> dict:
    """The scope that an application gets when ``peer`` sends these headers."""
    seen = []

    async def application(scope, receive, send) -> None:
        seen.append(scope)

    scope = {
        "type": kind,
        "scheme": {"http": "http", "websocket": "ws"}[kind],
        "client": [peer, 1234],
        "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
    }
    await TrustedProxy(application, [ip_network(proxy) for proxy in proxies])(scope, None, None)
    return seen[0]


FORWARDED = {
    "x_forwarded_for": "203.0.113.7",
    "x_forwarded_proto": "https",
    "x_forwarded_host": "evil.example.com",
}


@pytest.mark.parametrize(("kind", "scheme"), [("http", "https"), ("websocket", "wss")])
async def test_a_proxy_of_ours_says_who_the_client_is_and_what_it_speaks(kind, scheme):
    scope = await seen_through(["127.0.0.1"], peer="127.0.0.1", kind=kind, **FORWARDED)
    assert scope["client"][0] == "203.0.113.7"
    assert scope["scheme"] == scheme


@pytest.mark.parametrize("proxies", [[], ["10.0.0.0/8"]])
async def test_nobody_else_is_believed_and_nothing_of_it_reaches_the_application(proxies):
    scope = await seen_through(proxies, peer="127.0.0.1", host="chat.example.com", **FORWARDED)
    assert scope["client"] == ["127.0.0.1", 1234]
    assert scope["scheme"] == "http"
    assert scope["headers"] == [(b"host", b"chat.example.com")]


@pytest.mark.parametrize(
    ("forwarded", "client"),
    [
        ("198.51.100.1, 203.0.113.7", "203.0.113.7"),  # what stands before was written by the client
        ("198.51.100.1, 203.0.113.7, 10.1.2.3", "203.0.113.7"),  # two proxies of ours
        ("2001:db8::7", "2001:db8::7"),
        ("10.1.2.3", "10.9.9.9"),  # nobody but ourselves
        ("nonsense", "10.9.9.9"),
        ("", "10.9.9.9"),
    ],
)
async def test_the_client_is_the_nearest_address_that_is_not_ours(forwarded, client):
    scope = await seen_through(["10.0.0.0/8"], peer="10.9.9.9", x_forwarded_for=forwarded)
    assert scope["client"][0] == client


def behind(request) -> HttpResponse:
    return HttpResponse("not static")


async def behind_asynchronously(request) -> HttpResponse:
    return HttpResponse("not static")


async def test_a_static_file_is_served_whole_and_without_a_warning():
    middleware = StaticFilesMiddleware(behind_asynchronously)
    response = await middleware(AsyncRequestFactory().get(STYLES))
    assert response["Content-Type"].startswith("text/css")
    assert not response.streaming
    assert len(response.content) == int(response["Content-Length"])
    assert response["Cache-Control"] == "max-age=0, public"

    again = await middleware(
        AsyncRequestFactory().get(STYLES, headers={"if-modified-since": response["Last-Modified"]})
    )
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/", "/static/no-such-file.css", "/static/../manage.py"])
async def test_what_is_not_static_goes_on(path):
    response = await StaticFilesMiddleware(behind_asynchronously)(AsyncRequestFactory().get(path))
    assert response.content == b"not static"


def test_static_files_are_served_in_a_synchronous_chain_too():
    middleware = StaticFilesMiddleware(behind)
    assert middleware(RequestFactory().get(STYLES)).status_code == 200
    assert middleware(RequestFactory().get("/")).content == b"not static"


def test_the_version_is_the_one_of_pyproject():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == __version__

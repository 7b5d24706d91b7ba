"""What holds for every page."""

import re
from pathlib import Path

import pytest
from django.conf import settings
from django.db import OperationalError


def test_no_template_has_anything_inline():
    """The policy forbids inline script and style; a template that has some would break for everybody."""
    for path in Path(settings.BASE_DIR, "templates").rglob("*.html"):
        if "admin" in path.parts:
            continue
        markup = path.read_text()
        assert not re.search(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", markup), path
        assert not re.search(r"""(?:src|href)=["']https?:""", markup), path


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "status"), [("/login/", 200), ("/nothing/here/", 404)])
def test_every_page_says_its_language(client, path, status):
    answer = client.get(path)
    assert answer.status_code == status
    assert '<html lang="en">' in answer.content.decode()


@pytest.mark.django_db
def test_a_browser_finds_the_icon_where_it_looks_by_itself(client):
    answer = client.get("/favicon.ico", follow=True)
    assert answer.status_code == 200
    assert answer.headers["Content-Type"] == "image/svg+xml"


@pytest.mark.parametrize("accept", ["text/html", "application/json"])
async def test_while_the_database_is_unavailable_a_page_says_so(as_alice, monkeypatch, accept, caplog):
    def unavailable(*args, **options):
        raise OperationalError("the server closed the connection unexpectedly")

    monkeypatch.setattr("chat.pages.session_list.read", unavailable)
    answer = await as_alice.get("/chat/list/", headers={"accept": accept})
    assert answer.status_code == 503
    assert answer.headers["Retry-After"] == "1"
    assert answer.headers["Content-Type"].startswith(accept)
    assert "The database does not answer." in answer.content.decode()
    assert not [record for record in caplog.records if record.exc_info]

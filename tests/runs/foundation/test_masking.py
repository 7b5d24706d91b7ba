"""What counts as a secret in a text, and what does not."""

import time

import pytest
from langchain_core.messages import ToolMessage

from runs.foundation.exceptions import DETAILS_LIMIT, described
from runs.foundation.masking import MASK, masked
from runs.foundation.values import presentable, to_json
from tests.fakes.errors import HOSTILE, SECRETS, WORD, Leaving

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("Incorrect API key provided: sk-proj-abcdef123456.", "Incorrect API key provided: ***."),
        ("sk-ant-api03-abc_DEF-123 refused", "*** refused"),
        ("ghp_abcdefghijklmnop1234 and AKIAABCDEFGHIJKLMNOP", "*** and ***"),
        (f"jwt {JWT}", "jwt ***"),
        ("Authorization: Bearer abc.def-123", "Authorization: ***"),
        ("{'authorization': 'Basic dXNlcjpw', 'x': 1}", "{'authorization': ***, 'x': 1}"),
        ("[(b'Authorization', b'Token abc')]", "[(b'Authorization', ***)]"),
        ("cookie: a=b; sessionid=c (sent)", "cookie: *** (sent)"),
        ("Authorization: Token abc was refused", "Authorization: *** was refused"),
        ("a bearer abc.def-123 came", "a bearer *** came"),
        ("postgresql://app:p/w@rd@db:5432/x down", "postgresql://app:***@db:5432/x down"),
        ("redis://:pass@redis:6379/0", "redis://:***@redis:6379/0"),
        ("https://abcdefghijklmnopqrstuvwx@github.com/a", "https://***@github.com/a"),
        ("GET https://a.example/x?a=1&api_key=abc&b=2", "GET https://a.example/x?a=1&api_key=***&b=2"),
        ("https://a.example/?key=abc&sig=d%2Fe", "https://a.example/?key=***&sig=***"),
        ('{"password": "two words", "user": "u"}', '{"password": ***, "user": "u"}'),
        ("OPENAI_API_KEY=abc refresh_token: xyz", "OPENAI_API_KEY=*** refresh_token: ***"),
        ('body: {\\"api_key\\": \\"two words\\", \\"a\\": 1}', 'body: {\\"api_key\\": ***, \\"a\\": 1}'),
        ("Incorrect API key provided: abc. See the docs", "Incorrect API key provided: ***. See the docs"),
        ("['psql', '--password', 'abc'] gave 1", "['psql', '--password', ***] gave 1"),
        ("psql --password abc --quiet", "psql --password *** --quiet"),
        ("[('X-Api-Key', 'abc')]", "[('X-Api-Key', ***)]"),
        ("token => abc", "token => ***"),
        ("https://a.example/?next=%3Ftoken%3Dabc", "https://a.example/?next=%3Ftoken%3D***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----.", "***."),
        ("-----BEGIN PRIVATE KEY-----\nMIIE cut off", "***"),
    ],
)
def test_secrets_are_known_by_their_form_and_by_what_stands_before_them(text, wanted):
    assert masked(text) == wanted
    assert masked(wanted) == wanted


@pytest.mark.parametrize(
    "text",
    [
        "Input tokens: 12, max_tokens=4096; the task-management of sk-learn is basic.",
        "https://user@example.com/path?q=1&page=2 and git@github.com:a/b.git at http://localhost:8000/x",
        "KeyError: 'city'\n  File \"/srv/app/tools.py\", line 3, in weather",
    ],
)
def test_ordinary_text_stays(text):
    assert masked(text) == text


def test_values_of_settings_and_environment_are_secrets(settings, monkeypatch):
    settings.SECRET_KEY = "the key of this very server"
    monkeypatch.setenv("ACME_API_KEY", "odd value/1")
    monkeypatch.setenv("ACME_TOKEN", "other value")
    monkeypatch.setenv("DATABASE_URL", "postgresql://app:pass%2Fword@db/x")
    monkeypatch.setenv("SHORT_TOKEN", "on")
    text = (
        "the key of this very server, odd value/1, odd%20value%2F1, other value, pass%2Fword, pass/word, on"
    )
    assert masked(text) == f"{', '.join([MASK] * 6)}, on"


@pytest.mark.parametrize(
    "piece",
    ["://a:", "authorization: ", "token=", "a-", "eyJ", "sk-", "-----BEGIN PRIVATE KEY", "?key="],
)
def test_no_text_takes_long(piece):
    begun = time.monotonic()
    presentable(piece * 100_000, 50_000)
    assert time.monotonic() - begun < 5


def test_long_text_keeps_its_beginning_and_its_end():
    text = presentable("begin " + "x" * 1_000_000 + " end", 1000)
    assert len(text) == 1000
    assert text.startswith("begin x")
    assert text.endswith("x end")
    assert "[cut: 1,000,010 characters]" in text


def test_a_secret_at_the_edge_of_what_is_shown_is_masked():
    for before in range(600, 900):
        text = presentable("x " * (before // 2) + " sk-abcdefghijklmnop " + "y " * 5000, 1000)
        assert "sk-" not in text


@pytest.mark.parametrize("shift", range(0, 800, 97))
def test_no_part_of_a_secret_is_shown_where_very_long_text_was_cut(shift):
    """Each of these words becomes three characters, so what stood at the cut comes into sight."""
    secret = "sk-" + "of-the-secret-" * 57
    text = presentable("x" * shift + f" {secret}" * 5000 + "x" * shift, 2000)
    assert "secret" not in text
    assert "[cut: " in text


@pytest.mark.parametrize("make", [*HOSTILE.values(), Leaving], ids=[*HOSTILE, "leaving"])
def test_any_exception_can_be_described(make):
    error = make()
    text = described(error)
    assert type(error).__name__ in text
    assert len(text) <= DETAILS_LIMIT
    assert not any(secret in text for secret in SECRETS)
    text.encode()
    assert "\0" not in text


def test_causes_members_and_notes_are_described():
    try:
        try:
            raise KeyError("city")
        except KeyError as cause:
            raise ExceptionGroup("two", [ValueError(WORD), TypeError("other")]) from cause
    except ExceptionGroup as group:
        group.add_note("in the node tools")
        text = described(group)
    for part in ("two", f"ValueError: {WORD}", "TypeError: other", "in the node tools", "KeyError: 'city'"):
        assert part in text


@pytest.mark.parametrize("status", ["success", "error"])
@pytest.mark.parametrize(
    "content", [f"No: {SECRETS[0]}", [f"No: {SECRETS[0]}", {"type": "text", "text": SECRETS[1]}]]
)
def test_what_a_tools_message_says_in_an_update_is_masked(monkeypatch, content, status):
    monkeypatch.setenv("A_PASSWORD", SECRETS[1])
    told = str(to_json(ToolMessage(content, tool_call_id="c", status=status)))
    assert "No: ***" in told
    assert not any(secret in told for secret in SECRETS)

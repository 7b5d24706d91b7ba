"""The settings: every variable is read strictly, and what follows from it is what it says."""

import os
import runpy
import stat
import subprocess
import sys
from importlib import import_module

import pytest
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from project import environment, secret_key
from tests import ROOT

ANYTHING = {
    "SECRET_KEY",
    "ALLOWED_HOSTS",
    "OPENAI_API_KEY",
    "ANTHROPIC_API_KEY",
}  # every value is a right one

WRONG = [
    ("DATA_DIR", "/dev/null/data", "must be a folder"),
    ("DEBUG", "maybe", "must be on or off, not 'maybe'"),
    ("CSRF_TRUSTED_ORIGINS", "chat.example.com", "must be origins such as https://chat.example.com"),
    (
        "CSRF_TRUSTED_ORIGINS",
        "https://chat.example.com/path",
        "must be origins such as https://chat.example.com",
    ),
    ("TRUSTED_PROXY", "yes", "must be addresses or networks such as 127.0.0.1"),
    ("TRUSTED_PROXY", "10.0.0.1/8", "must be addresses or networks such as 127.0.0.1"),
    ("PORT", "http", "must be a whole number from 0 to 65535, not 'http'"),
    ("PORT", "65536", "must be a whole number from 0 to 65535"),
    ("DATABASE_URL", "mysql://localhost/turnkeeper", "must be an address that begins with postgresql://"),
    ("DATABASE_URL", "postgresql://localhost", "must be an address such as postgresql://"),
    ("DATABASE_URL", "postgresql://localhost:port/turnkeeper", "must be an address such as postgresql://"),
    ("REDIS_URL", "localhost:6379", "must be an address that begins with redis://"),
    ("DISPATCH", "celery", "must be one of inprocess, procrastinate, not 'celery'"),
    ("TIME_ZONE", "Europe/Nowhere", "must be the name of a time zone such as Europe/Vienna"),
    ("TIME_ZONE", "../etc/passwd", "must be the name of a time zone"),
    ("LOG_FORMAT", "xml", "must be one of text, json"),
    ("LOG_LEVEL", "LOUD", "must be one of DEBUG, INFO, WARNING, ERROR, CRITICAL"),
    ("AGENTS", "assistant", "must be a JSON object such as"),
    ("AGENTS", "{}", "must be a JSON object such as"),
    ("AGENTS", '["chat.agent:build_graph"]', "must be a JSON object such as"),
    ("AGENTS", '{"assistant": "chat.agent.graph"}', "must be a JSON object such as"),
    ("AGENTS", '{"assistant": 1}', "must be a JSON object such as"),
    ("AGENT_MODEL", "gpt", "must be demo, openai:<model> or anthropic:<model>, not 'gpt'"),
    ("AGENT_MODEL", "openai:", "must be demo, openai:<model> or anthropic:<model>"),
    ("OPENAI_BASE_URL", "localhost:8080/v1", "must be an address that begins with https:// or http://"),
    ("RUNS_CANCEL_GRACE", "-1", "must be a number of seconds, 0 or more"),
    ("RUNS_CANCEL_TIMEOUT", "0", "must be a number of seconds, more than 0"),
    ("RUNS_HEARTBEAT", "nan", "must be a number of seconds, more than 0, not 'nan'"),
    ("RUNS_RUN_TIMEOUT", "inf", "must be a number of seconds"),
    ("RUNS_IDLE_TIMEOUT", "1 min", "must be a number of seconds"),
    ("RUNS_TOOL_TIMEOUT", "-5", "must be a number of seconds"),
    ("RUNS_DRAIN_TIMEOUT", "soon", "must be a number of seconds"),
    ("RUNS_STEP_LIMIT", "0", "must be a whole number of at least 1, not '0'"),
    ("RUNS_RESULT_LIMIT", "0", "must be a whole number of at least 1, not '0'"),
    ("RUNS_MESSAGE_LIMIT", "1e5", "must be a whole number of at least 1"),
    ("RUNS_MAX_RESUMES", "-1", "must be a whole number of at least 0"),
    ("RUNS_QUEUE_LIMIT", "2.5", "must be a whole number of at least 1"),
    ("RUNS_STRAGGLER_LIMIT", "0", "must be a whole number of at least 1, not '0'"),
    ("RUNS_CONCURRENCY", "\N{SUPERSCRIPT TWO}", "must be a whole number of at least 1"),
]


@pytest.fixture
def read_settings(monkeypatch, tmp_path):
    """Reads the settings anew in an environment of exactly these variables."""

    def read(**variables: str) -> dict:
        for name in environment.names:
            monkeypatch.delenv(name, raising=False)
        for name, value in {"SECRET_KEY": "key", "DATA_DIR": str(tmp_path), **variables}.items():
            monkeypatch.setenv(name, value)
        return runpy.run_path(str(ROOT / "project" / "settings.py"))

    return read


@pytest.mark.parametrize(("name", "value", "words"), WRONG)
def test_a_wrong_value_stops_the_start_with_a_sentence_that_names_it(read_settings, name, value, words):
    with pytest.raises(ImproperlyConfigured) as error:
        read_settings(**{name: value})
    sentence = str(error.value)
    assert sentence.startswith(name)
    assert words in sentence
    assert sentence.endswith(".")


def test_every_variable_can_be_wrong_in_this_table():
    assert {name for name, _, _ in WRONG} | ANYTHING == environment.names


def test_an_address_that_may_hold_a_password_is_not_repeated(read_settings):
    with pytest.raises(ImproperlyConfigured) as error:
        read_settings(DATABASE_URL="mysql://user:secret@localhost/x")
    assert "secret" not in str(error.value)


def test_an_empty_variable_counts_as_unset(read_settings):
    assert read_settings(RUNS_HEARTBEAT="", DATABASE_URL=" ")["RUNS_HEARTBEAT"] == 5


def test_the_defaults_are_one_machine_with_sqlite(read_settings, tmp_path):
    found = read_settings()
    assert found["DATABASES"]["default"]["NAME"] == tmp_path / "turnkeeper.sqlite3"
    assert found["DATABASES"]["default"]["OPTIONS"]["transaction_mode"] == "IMMEDIATE"
    assert found["CHECKPOINT_PATH"] == tmp_path / "checkpoints.sqlite3"
    assert found["CHANNEL_LAYERS"]["default"]["BACKEND"] == "channels.layers.InMemoryChannelLayer"
    assert found["DISPATCH"] == "inprocess"
    assert found["ALLOWED_HOSTS"] == ["127.0.0.1", "localhost", "[::1]"]
    assert found["AGENTS"] == {"assistant": "chat.agent:build_graph"}
    assert not found["DEBUG"]


def test_postgresql_has_a_bounded_pool_and_redis_carries_the_channel_layer(read_settings):
    found = read_settings(
        DATABASE_URL="postgresql://ann:se%3Acret@db.example.com:6543/turns", REDIS_URL="redis://localhost/3"
    )
    database = found["DATABASES"]["default"]
    assert (database["USER"], database["PASSWORD"], database["HOST"], database["PORT"], database["NAME"]) == (
        *("ann", "se:cret", "db.example.com", 6543),
        "turns",
    )
    assert database["CONN_MAX_AGE"] == 0
    assert database["OPTIONS"]["pool"]["max_size"] == 12
    assert found["CHANNEL_LAYERS"]["default"]["CONFIG"]["hosts"] == ["redis://localhost/3"]


def test_the_options_of_an_address_are_added_to_ours(read_settings):
    url = "postgresql://localhost/turns?sslmode=require&options=-c%20search_path%3Dturns"
    options = read_settings(DATABASE_URL=url)["DATABASES"]["default"]["OPTIONS"]
    assert options["sslmode"] == "require"
    assert options["options"].endswith(" -c search_path=turns")
    assert "-c lock_timeout=" in options["options"]


def test_cookies_work_over_plain_http_on_loopback_and_need_https_behind_a_proxy(read_settings):
    plain, proxied = read_settings(), read_settings(TRUSTED_PROXY="127.0.0.1,10.0.0.0/8")
    for name in ("SESSION_COOKIE_SECURE", "CSRF_COOKIE_SECURE", "SECURE_SSL_REDIRECT"):
        assert (plain[name], proxied[name]) == (False, True)
    for found in (plain, proxied):
        assert found["SESSION_COOKIE_HTTPONLY"]
        assert found["SESSION_COOKIE_SAMESITE"] == "Lax"


def test_the_content_security_policy_forbids_what_is_inline():
    directives = settings.CONTENT_SECURITY_POLICY["DIRECTIVES"]
    assert directives["script-src"] == directives["style-src"] == directives["default-src"] == ["'self'"]
    assert directives["img-src"] == ["'self'", "data:"]
    assert directives["frame-ancestors"] == ["'none'"]


def test_every_middleware_is_asynchronous():
    """One that is not would hold a thread for each waiting call."""
    for path in settings.MIDDLEWARE:
        module, _, name = path.rpartition(".")
        assert getattr(import_module(module), name).async_capable, path


def test_the_secret_key_is_the_environments_or_else_the_kept_one(read_settings, tmp_path):
    assert read_settings(SECRET_KEY="from the environment")["SECRET_KEY"] == "from the environment"
    (tmp_path / "secret_key").write_text("kept\n")
    assert read_settings(SECRET_KEY="")["SECRET_KEY"] == "kept"


def test_without_a_key_nothing_starts(read_settings, tmp_path):
    with pytest.raises(ImproperlyConfigured, match=r"^SECRET_KEY is not set, and DATA_DIR holds no key; "):
        read_settings(SECRET_KEY="")
    assert not list(tmp_path.iterdir())


def test_a_key_that_may_be_made_is_made_once_and_for_our_eyes_only(monkeypatch, tmp_path):
    monkeypatch.setattr(secret_key, "may_be_made", True)
    key = secret_key.read_or_make(tmp_path)
    assert len(key) >= 50
    assert secret_key.read_or_make(tmp_path) == key
    assert stat.S_IMODE((tmp_path / "secret_key").stat().st_mode) == 0o600


def test_a_data_folder_is_made_for_our_eyes_only(read_settings, tmp_path):
    read_settings(DATA_DIR=str(tmp_path / "a" / "b"))
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o700


@pytest.mark.parametrize("command", ["migrate", "check", "serve", "help", "no_such_command"])
def test_a_command_says_what_is_wrong_in_one_line(command):
    ended = subprocess.run(
        [sys.executable, "manage.py", command],
        cwd=ROOT,
        env={**os.environ, "RUNS_HEARTBEAT": "often"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    assert ended.stderr == "RUNS_HEARTBEAT must be a number of seconds, more than 0, not 'often'.\n"

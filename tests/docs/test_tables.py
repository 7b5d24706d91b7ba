"""The tables of the documents are the code's."""

import ast
import re
import tomllib

import pytest
from django.conf import settings
from django.core.management import get_commands
from prometheus_client import generate_latest

from chat.access.throttles import Throttled
from chat.api.errors import CODES
from chat.api.schema import components, document
from chat.monitoring import metrics
from chat.websocket import frames
from project import environment
from runs import agents, errors
from runs.errors import EngineError
from runs.live import follow
from runs.models import Run
from runs.states import CancelOutcome, Effect, ErrorCode
from runs.token import CancelToken
from runs.wire import contract
from tests import ROOT
from tests.docs.pages import PAGES, first_words, name_of, read, section, tables

TEXT = "\n".join(page.read_text() for page in PAGES)


def words_in(cell: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", cell))


# Clients


def test_the_rest_table_names_every_call_and_no_other():
    calls = {f"{method.upper()} {path}" for path, item in document()["paths"].items() for method in item}
    assert sorted(first_words(tables(read("clients/rest.md"))[0])) == sorted(calls)


def test_the_table_of_errors_names_every_code_with_its_status():
    told = {row[0].strip("`"): int(row[1]) for row in tables(section("clients/index.md", "Errors"))[0]}
    assert set(told) == set(CODES)
    raised = [error for error in vars(errors).values() if isinstance(error, type)]
    for error in [*raised, Throttled]:
        if issubclass(error, EngineError) and error.code != "internal":
            assert told[error.code] == error.status


def test_the_table_of_objects_names_every_field():
    objects = components()
    for name, fields in tables(section("clients/index.md", "Objects"))[0]:
        assert words_in(fields) == set(objects[name]["properties"]), name


def test_the_table_of_effects_names_every_effect():
    (rows,) = tables(section("clients/index.md", "Messages and tool calls"))
    assert first_words(rows) == [*Effect.values, "null"]


def test_the_table_of_outcomes_names_every_outcome():
    (rows,) = tables(section("clients/rest.md", "Cancel"))
    assert first_words(rows) == CancelOutcome.values


def test_the_table_of_events_names_every_event_with_its_fields():
    events, failures = tables(section("clients/events.md", "Each event"))
    told = {row[0].strip("`"): words_in(row[1]) for row in events}
    assert told == {str(type): set(data.__annotations__) for type, data in contract.EVENTS.items()}
    assert first_words(failures) == ErrorCode.values


def test_the_table_of_commands_names_every_frame_a_socket_takes():
    (rows,) = tables(section("clients/websocket.md", "Commands"))
    assert sorted(first_words(rows)) == sorted([*frames._COMMANDS, "ping"])


def test_the_table_of_frames_names_every_frame_a_socket_sends():
    items = [
        follow.SessionChanged({}),
        follow.CancellationChanged("", pending=True, revision=1),
        follow.EffectChanged("", "", ""),
        follow.SessionDeleted(""),
        follow.SummaryChanged({"id": "", "title": "", "status": "", "updated_at": ""}),
    ]
    assert {type(item) for item in items} | {follow.Event} == set(follow.Item.__args__)
    (rows,) = tables(section("clients/websocket.md", "Frames"))
    told = {row[0].strip("`"): words_in(row[1]) for row in rows}
    for item in items:
        frame = frames._frame(item)
        assert told.pop(frame.pop("type")) == set(frame)
    assert told == {
        "run.event": {"event"},
        "response": {"request_id", "result"},
        "error": {"request_id", "code", "message", "cancellation"},
        "pong": set(),
    }


def test_the_table_of_close_codes_names_every_code_that_is_used():
    modules = [*(ROOT / "chat" / "websocket").glob("*.py"), ROOT / "chat" / "server" / "transport.py"]
    used = {
        node.value
        for module in modules
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, int)
        if 1000 <= node.value <= 1015 or 4000 <= node.value <= 4999
    }
    (rows,) = tables(section("clients/websocket.md", "Close codes"))
    assert [int(code) for code in first_words(rows)] == sorted(used)


# Agents


def test_the_table_of_policies_names_every_policy():
    (rows,) = tables(section("agents.md", "Policies"))
    assert first_words(rows) == list(agents.Policy.__dataclass_fields__)


def test_the_table_of_the_token_names_what_tools_may_use():
    (rows,) = tables(section("agents.md", "Tools"))
    public = {name for name in vars(CancelToken) if not name.startswith("_")} - {"cancel"}  # the engine's own
    assert {name.partition("(")[0] for name in first_words(rows)} == public


# Operators


def test_the_table_of_settings_names_every_variable_and_no_other():
    assert settings.DATA_DIR  # the settings have been read
    (rows,) = tables(read("operating/settings.md"))
    named = first_words(rows)
    assert len(named) == len(set(named))
    assert set(named) == environment.names


@pytest.mark.django_db
def test_the_table_of_metrics_names_every_metric():
    (rows,) = tables(section("operating/monitoring.md", "Metrics"))
    exposed = generate_latest(metrics.REGISTRY) + metrics._exposition(metrics._in_this_process())
    told = set(re.findall(r"^# TYPE (turnkeeper_\w+)", exposed.decode(), re.MULTILINE))
    made = {name for name in told if not name.endswith("_created")}
    assert set(first_words(rows)) == made


def test_the_alerts_are_about_metrics_that_exist():
    (rows,) = tables(section("operating/monitoring.md", "Metrics"))
    asked = set(re.findall(r"turnkeeper_\w+", section("operating/monitoring.md", "Alerts")))
    assert {name.removesuffix("_bucket") for name in asked} <= set(first_words(rows))


def test_the_permissions_that_the_console_asks_for_exist():
    (rows,) = tables(section("operating/console.md", "Commands"))
    told = {row[1].strip("`").removeprefix("runs.") for row in rows}
    assert told | {"read_chats"} == {name for name, _ in Run._meta.permissions}


@pytest.mark.parametrize("name", sorted(set(re.findall(r"manage\.py (\w+)", TEXT))))
def test_the_commands_that_are_named_exist(name):
    assert name in get_commands()


@pytest.mark.parametrize(
    "name", sorted(set(re.findall(r"(?:`|^|\.\.\. |=\w+ )make ([a-z-]+)", TEXT, re.MULTILINE)))
)
def test_the_make_targets_that_are_named_exist(name):
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("name", sorted(set(re.findall(r"python -m (tests[\w.]+)", TEXT))))
def test_the_programs_that_are_named_exist(name):
    path = ROOT.joinpath(*name.split("."))
    assert path.with_suffix(".py").exists() or (path / "__main__.py").exists()


# Contributors


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:runs|chat|project|tests)/[\w/.]*)`", TEXT))))
def test_the_files_and_folders_that_are_named_exist(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize("way", ["A message, followed through", "A cancel, followed through"])
def test_the_hops_that_are_named_exist(way):
    (rows,) = tables(section("architecture.md", way))
    for path, function, _ in rows:
        source = (ROOT / path.strip("`")).read_text()
        name = function.strip("`")
        assert re.search(rf"^ *(?:async )?def {name}\(", source, re.MULTILINE), f"{path} {name}"


def test_the_rooms_that_are_named_are_all_there_are():
    packages = [path.parent for app in ("runs", "chat") for path in (ROOT / app).glob("*/__init__.py")]
    for_django = ("migrations", "templatetags", "management")
    rooms = {name_of(package) for package in packages if package.name not in for_django}
    engine, product = (section("architecture.md", f"Rooms of the {part}") for part in ("engine", "product"))
    told = set(re.findall(r"^\| `((?:runs|chat)/\w+)/`", engine + product, re.MULTILINE))
    assert told - {"runs/management"} == rooms


def test_the_constraints_that_hold_the_invariants_exist():
    models = (ROOT / "runs" / "models.py").read_text()
    named = re.findall(r"constraint `(\w+)`", section("architecture.md", "What always holds"))
    assert named
    for name in named:
        assert f'name="{name}"' in models, name


def test_every_library_that_a_server_needs_is_explained():
    text = read("dependencies.md").lower()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for requirement in project["dependencies"]:
        name = re.match(r"[\w-]+", requirement)[0].lower()
        assert name in text or name.startswith("langgraph-checkpoint-"), name


@pytest.mark.parametrize("lock", ["requirements.txt", "requirements-anthropic.txt", "requirements-dev.txt"])
def test_the_locks_name_no_registry_and_pin_every_file(lock):
    text = (ROOT / lock).read_text()
    assert not re.search(
        r"^\s*-|://|index-url|find-links", re.sub(r"(?m)^    --hash=.*$", "", text), re.MULTILINE
    )
    for requirement in re.findall(r"(?m)^[a-z].*(?:\n    .*)*", text):
        assert "--hash=sha256:" in requirement, requirement.splitlines()[0]

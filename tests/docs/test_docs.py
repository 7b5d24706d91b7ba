"""What the README says exists."""

import re
import tomllib

import pytest
from django.conf import settings
from django.core.management import get_commands

from project import environment
from tests import ROOT

README = (ROOT / "README.md").read_text()


def section(title: str) -> str:
    return README.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_settings_names_every_variable_and_no_other():
    assert settings.DATA_DIR  # the settings have been read
    assert [row[0].strip("`") for row in rows("Settings")] == list(
        dict.fromkeys(row[0].strip("`") for row in rows("Settings"))
    )
    assert {row[0].strip("`") for row in rows("Settings")} == environment.names


@pytest.mark.parametrize("name", sorted(set(re.findall(r"manage\.py (\w+)", README))))
def test_the_commands_it_names_exist(name):
    assert name in get_commands()


@pytest.mark.parametrize(
    "name",
    sorted(set(re.findall(r"\bmake (run|test-services|test|faults|bench|cluster|lock|lint)\b", README))),
)
def test_the_make_targets_it_names_exist(name):
    assert re.search(rf"^{name}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


def test_the_modules_that_hold_the_invariants_exist():
    for _, where in rows("What always holds"):
        for path in re.findall(r"`(runs/[\w/.]+)`", where):
            assert (ROOT / path).exists(), path


def test_the_constraints_that_hold_the_invariants_exist():
    models = (ROOT / "runs" / "models.py").read_text()
    for _, where in rows("What always holds"):
        for name in re.findall(r"constraint `(\w+)`", where):
            assert f'name="{name}"' in models, name


def test_every_library_that_a_server_needs_is_explained():
    text = section("Why each library is there").lower()
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

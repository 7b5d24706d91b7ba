"""The container files, as far as they can be held against the rest without building anything."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from django.conf import settings
from django.core.management import get_commands

ROOT = Path(settings.BASE_DIR)
INSTRUCTIONS = [
    (found[1], found[2].split())
    for found in re.finditer(r"^([A-Z]+) (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
]
# A look at a page and at what it is made of.
VISIT = """
import re
from django.test import Client

client = Client(headers={"host": "localhost"})
page = client.get("/login/")
addresses = re.findall('(?:href|src)="(/static/[^"]+)"', page.content.decode())
assert page.status_code == 200 and addresses
for address in addresses:
    assert client.get(address).status_code == 200, address
"""


def words_of(instruction):
    return [words for name, words in INSTRUCTIONS if name == instruction]


@pytest.fixture(scope="module")
def services():
    return yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]


def of_ours(services):
    return {name: service for name, service in services.items() if "build" in service}


def test_what_the_image_copies_is_all_that_its_processes_need(tmp_path):
    for *sources, target in words_of("COPY"):
        for source in sources:
            found, to = ROOT / source, tmp_path / target
            shutil.copytree(found, to) if found.is_dir() else shutil.copy(found, to)
    environment = {
        "PATH": os.environ["PATH"],
        "DATA_DIR": str(tmp_path / "data"),
        "SECRET_KEY": "only for a look at what was copied, and long enough to be taken",
        "ALLOWED_HOSTS": "localhost",
    }
    for command in (["check"], ["migrate"], ["shell", "-c", VISIT]):
        subprocess.run([sys.executable, "manage.py", *command], cwd=tmp_path, env=environment, check=True)


def test_what_the_image_copies_is_sent_to_its_build():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    for *sources, _ in words_of("COPY"):
        for source in sources:
            assert any(Path(source).match(pattern) for pattern in kept), source


def test_every_process_runs_a_command_that_there_is(services):
    (default,) = words_of("CMD")
    commands = [yaml.safe_load(" ".join(default))]
    commands += [one["command"].split() for one in of_ours(services).values() if "command" in one]
    assert len(commands) == 3
    for python, manage, command, *_ in commands:
        assert (python, manage) == ("python", "manage.py")
        assert command in get_commands()


def test_every_process_has_the_same_settings_and_all_of_them_are_documented(services):
    table = (ROOT / "docs" / "operating" / "settings.md").read_text()
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", table, re.MULTILINE))
    environments = [service["environment"] for service in of_ours(services).values()]
    assert all(environment == environments[0] for environment in environments)
    assert set(environments[0]) <= documented


def test_the_addresses_are_those_of_services(services):
    environment = services["web"]["environment"]
    assert re.search(r"@(\w+)/", environment["DATABASE_URL"])[1] in services
    assert re.search(r"//(\w+)/", environment["REDIS_URL"])[1] in services


def test_processes_are_given_the_time_to_leave(services):
    for service in of_ours(services).values():
        assert int(service["stop_grace_period"].removesuffix("s")) > settings.RUNS_DRAIN_TIMEOUT


def test_the_proxy_finds_the_servers_where_they_listen(services):
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())
    caddyfile = compose["configs"]["caddyfile"]["content"]
    ((port,),) = words_of("EXPOSE")
    assert re.search(rf"dynamic a web {port}\b", caddyfile)
    (default,) = words_of("CMD")
    assert yaml.safe_load(" ".join(default))[-2:] == ["--port", port]
    assert "flush_interval -1" in caddyfile, "event streams are passed on at once"

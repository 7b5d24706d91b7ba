"""What git runs before a commit is what the gate's lint runs."""

import re
import shlex

import yaml

from tests import ROOT


def test_each_command_of_the_lint_has_its_hook():
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1]
    lint = {what_runs(line.replace("$(BIN)", ".venv/bin")) for line in recipe.splitlines()}
    (local,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert {what_runs(hook["entry"]) for hook in local["hooks"]} == lint


def what_runs(command):
    """Program and subcommand, without environment and options."""
    words = [word for word in shlex.split(command) if "=" not in word and word != "env"]
    return tuple(word for word in words if not word.startswith("-"))

"""Commands start without loading what they do not use."""

import os
import subprocess
import sys

import pytest

from tests import ROOT

HEAVY = {"daphne", "langchain_core", "langgraph", "langsmith", "openai", "pydantic", "twisted"}


@pytest.mark.parametrize("command", ["check", "create_token --help"])
def test_a_command_that_runs_no_graph_loads_neither_langgraph_nor_a_server(command, tmp_path):
    program = (
        "import sys, runpy\n"
        f"sys.argv = ['manage.py', *{command.split()!r}]\n"
        "try:\n"
        "    runpy.run_path('manage.py', run_name='__main__')\n"
        "except SystemExit as end:\n"
        "    assert not end.code\n"
        "print('Loaded:', *{name.partition('.')[0] for name in sys.modules})\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=os.environ | {"DATA_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(ended.stdout.rpartition("Loaded: ")[2].split())
    assert "django" in loaded
    assert not loaded & HEAVY

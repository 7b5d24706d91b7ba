"""The arrows between modules go down only, as pyproject.toml draws them."""

import subprocess
import sys

from tests import ROOT


def test_arrows_go_down_only():
    command = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
    ended = subprocess.run(
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr

"""Marks that tools leave."""

from pathlib import Path

import pytest

from tests.fakes import (
    Marks,
)


@pytest.fixture
def marks(tmp_path: Path) -> Marks:
    return Marks(tmp_path / "marks")

"""What the tests of commands share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.virtual_node.commands.run_command import Person


@pytest.fixture
def person(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Person:
    """Somebody at a command line."""
    return Person(capsys, tmp_path)

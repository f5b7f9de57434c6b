"""Fixtures of the tests of commands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.virtual_node.commands.run_command import Person


@pytest.fixture
def person(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Person:
    """A user at a command line."""
    return Person(capsys, tmp_path)

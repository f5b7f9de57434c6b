"""Credentials of a plugin in a folder of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controller_runtime.auth.exec_credentials import ExecCredentials, Plugin
from tests.unit.controller_runtime.auth.exec_credentials.plugin import Clock, Make, Program


@pytest.fixture
def clock() -> Clock:
    """Wall time of the test."""
    return Clock()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    """A plugin that answers with the token ``one``."""
    made = Program(tmp_path)
    made.answer(token="one")
    return made


@pytest.fixture
def make(program: Program, clock: Clock) -> Make:
    """Makes credentials of the plugin."""

    def make(**fields: Any) -> ExecCredentials:
        return ExecCredentials(Plugin(str(program.path), source="users[name=u].user", **fields), now=clock)

    return make

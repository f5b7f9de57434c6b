"""A scripted credential plugin, and the clock of the test."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller_runtime.auth.credentials import ExecCredentials, Plugin

V1 = "client.authentication.k8s.io/v1"


class Clock:
    """Wall time that tests advance."""

    def __init__(self) -> None:
        self.moment = datetime(2026, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.moment

    def after(self, seconds: float) -> str:
        """A timestamp so many seconds from now."""
        return (self.moment + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Program:
    """A plugin: prints ``answer.json`` and records each run in ``runs``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.path = directory / "plugin"
        self.write(
            "import json, os, pathlib, sys\n"
            "here = pathlib.Path(__file__).parent\n"
            "note = {'args': sys.argv[1:], 'info': os.environ['KUBERNETES_EXEC_INFO'],"
            " 'extra': os.environ.get('EXTRA', '')}\n"
            "(here / 'runs').open('a').write(json.dumps(note) + '\\n')\n"
            "sys.stdout.write((here / 'answer.json').read_text())\n"
        )

    def write(self, body: str) -> None:
        self.path.write_text(f"#!{sys.executable}\n{body}")
        self.path.chmod(0o755)

    def answer(self, **status: Any) -> None:
        whole = {"kind": "ExecCredential", "apiVersion": V1, "status": status}
        (self.directory / "answer.json").write_text(json.dumps(whole))

    @property
    def runs(self) -> list[dict[str, Any]]:
        file = self.directory / "runs"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


Make = Callable[..., ExecCredentials]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


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

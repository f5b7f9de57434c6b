"""Logging into memory."""

from __future__ import annotations

import io
import json
from typing import Any, NoReturn

import pytest

from controller_runtime import log


class Lines(io.BytesIO):
    """A stream that remembers what was logged."""

    def all(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.getvalue().splitlines()]

    def last(self) -> dict[str, Any]:
        return self.all()[-1]


def fail(error: Exception) -> NoReturn:
    raise error


@pytest.fixture
def lines() -> Lines:
    """JSON logging at level info into memory."""
    stream = Lines()
    log.configure("info", "json", stream=stream)
    return stream

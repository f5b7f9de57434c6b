"""Logging into memory."""

from __future__ import annotations

import pytest

from controller_runtime import log
from tests.unit.controller_runtime.log.capture import Lines


@pytest.fixture
def lines() -> Lines:
    """JSON logging at level info into memory."""
    stream = Lines()
    log.configure("info", "json", stream=stream)
    return stream

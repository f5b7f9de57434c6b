"""Logging as it was before, after every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import structlog

from controller_runtime import log
from tests.unit.controller_runtime.log.capture import Lines


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Put the process' logging back as it was."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.reset_defaults()


@pytest.fixture
def lines() -> Lines:
    """JSON logging at level info into memory."""
    stream = Lines()
    log.configure("info", "json", stream=stream)
    return stream

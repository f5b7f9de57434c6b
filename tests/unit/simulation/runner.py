"""Runs one story on a loop of its own, in virtual time."""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import traceback
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from unittest import mock

import structlog
from structlog.typing import EventDict

from tests.unit.simulation.clock import VirtualLoop, virtual_wall_clock


@dataclass
class Story:
    """What happened, and what was wrong with it."""

    happened: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    changes: list[str] = field(default_factory=list)
    """Every change that an API server stored, with its time and author."""


def play(seed: int, run: Callable[[Story], Awaitable[None]]) -> Story:
    """Run a story to its end. A standstill is among what is wrong."""
    story = Story()
    before = structlog.get_config()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        processors=[partial(_note_error, story)],
        cache_logger_on_first_use=False,
    )
    loop = VirtualLoop()

    def jitter() -> float:
        """Depends on the time alone, so that the order of those who draw at the same time changes nothing."""
        return random.Random(f"{seed} {loop.time()}").random()

    def uniform(least: float, most: float) -> float:
        return least + (most - least) * jitter()

    async def run_it() -> None:
        await run(story)

    try:
        with (
            mock.patch("random.random", jitter),
            mock.patch("random.uniform", uniform),
            virtual_wall_clock(),
            asyncio.Runner(loop_factory=lambda: loop) as runner,
        ):
            runner.run(run_it())
    except RuntimeError as error:
        story.wrong.append(f"at {loop.time():.2f}: {error}")
    finally:
        structlog.configure(**before)
    return story


def _note_error(story: Story, _logger: Any, _level: str, event: EventDict) -> EventDict:
    """Count the traceback of a log message, which is a programming error, as wrong; log nothing."""
    error = event.get("exc_info")
    if error is True:
        error = sys.exc_info()[1]
    if isinstance(error, BaseException):
        story.wrong.append("".join(traceback.format_exception(error))[-900:])
    raise structlog.DropEvent

"""Simulations by their seeds, outside the tests: one to be looked at, or thousands in search of a bad one.

    PYTHONPATH=. python -m tests.unit.simulation.replay 7          # what happened, and what was wrong
    PYTHONPATH=. python -m tests.unit.simulation.replay 0 5000     # a line for each that goes wrong

A seed is the same story as long as the code under test is the same: a mend changes all of them. What befalls a request
depends on the seed and the request alone, so ``PYTHONHASHSEED`` changes nothing but the order of what happens at the
same moment; where that decides, which is seldom, try a few of them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from dataclasses import dataclass, field
from unittest import mock

import structlog

from tests.unit.simulation.clock import VirtualLoop
from tests.unit.simulation.world import World

STEPS = 120


@dataclass
class Story:
    """What happened, and what was wrong with it."""

    happened: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def simulate(seed: int, *, steps: int = STEPS) -> Story:
    """Run one simulation on a loop of its own. A standstill is among what is wrong."""
    story = Story()

    async def run() -> None:
        world = World(seed)
        story.happened = world.log
        story.wrong += await world.run(steps)

    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    loop = VirtualLoop()

    def jitter() -> float:
        """Of the moment alone: in what order those draw who back off together is the hash's to know."""
        return random.Random(f"{seed} {loop.time()}").random()

    def uniform(least: float, most: float) -> float:
        return least + (most - least) * jitter()

    try:
        with (
            mock.patch("random.random", jitter),
            mock.patch("random.uniform", uniform),
            asyncio.Runner(loop_factory=lambda: loop) as runner,
        ):
            runner.run(run())
    except RuntimeError as error:
        story.wrong.append(f"at {loop.time():.2f}: {error}")
    finally:
        structlog.configure(**before)
    return story


def _main(first: int, end: int) -> None:
    for seed in range(first, end):
        story = simulate(seed)
        if end == first + 1:
            print(*story.happened, sep="\n")  # noqa: T201
        if story.wrong:
            print(f"seed {seed}:", *story.wrong, sep="\n    ", flush=True)  # noqa: T201


if __name__ == "__main__":
    numbers = [int(text) for text in sys.argv[1:]]
    _main(numbers[0], numbers[1] if len(numbers) > 1 else numbers[0] + 1)

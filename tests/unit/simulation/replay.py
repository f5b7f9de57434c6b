"""Simulations by their seeds, outside the tests: one to be looked at, or thousands in search of a bad one.

    PYTHONPATH=. python -m tests.unit.simulation.replay 7          # what happened, and what was wrong
    PYTHONPATH=. python -m tests.unit.simulation.replay 0 5000     # a line for each that goes wrong

A seed is the same story for every ``PYTHONHASHSEED``, as long as the code under test is the same: a fix changes all
stories.
"""

from __future__ import annotations

import sys

from tests.unit.simulation.runner import Story, play
from tests.unit.simulation.world import World

STEPS = 120


def simulate(seed: int, *, steps: int = STEPS) -> Story:
    """Run one simulation on a loop of its own. A standstill is among what is wrong."""

    async def run(story: Story) -> None:
        world = World(seed)
        story.happened, story.changes = world.log, world.changes
        story.wrong += await world.run(steps)

    return play(seed, run)


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

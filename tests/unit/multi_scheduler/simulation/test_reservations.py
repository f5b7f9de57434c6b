"""A promise of room is kept: random clusters, pods, lower schedulers, lags, outages, node changes and restarts.

One seed is one story. ``python -m tests.unit.multi_scheduler.simulation 5000`` tries many and prints those that go wrong.
"""

from __future__ import annotations

import pytest

from tests.thorough import seeds
from tests.unit.multi_scheduler.simulation.story import simulate


@pytest.mark.parametrize("seed", seeds(5, 20))
def test_promised_room_is_there_and_no_pod_waits_that_fits(seed: int):
    world = simulate(seed)
    assert not world.wrong, "\n".join([f"seed {seed}", *world.story, "WRONG:", *world.wrong])

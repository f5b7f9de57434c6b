"""Three processes, three clusters, and everything that can go wrong, in many orders: nothing is lost, leaked or torn.

What must hold is in ``watchdog`` (at every moment) and ``outcome`` (once all is quiet). ``replay`` tells how to look at
one seed and how to try thousands.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.thorough import only_thorough, seeds
from tests.unit.simulation.clock import VirtualLoop
from tests.unit.simulation.replay import simulate


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_clusters_agree_in_the_end_whatever_happens_on_the_way(seed: int):
    """Outages, late watches, lost answers, killed processes whose requests arrive late, meddling, names used again."""
    story = simulate(seed)
    assert not story.wrong, "\n".join([f"seed {seed}", *story.happened, "WRONG:", *story.wrong])


@only_thorough
def test_a_seed_is_the_same_story_for_every_hash_seed():
    """Sets of strings iterate in the order of their hashes: nothing that is written may depend on it."""
    program = "from tests.unit.simulation.replay import simulate; print(*simulate(10).changes, sep='\\n')"
    other = "0" if os.environ.get("PYTHONHASHSEED") != "0" else "1"
    run = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONHASHSEED": other},
        capture_output=True,
        text=True,
        check=True,
    )
    changes = [str(change) for change in simulate(10).changes]
    assert len(changes) > 100
    assert run.stdout.splitlines() == changes


def test_who_waits_for_no_time_in_a_loop_is_found_out():
    """A pause that rounds to nothing lets nobody see the clock move on."""
    loop = VirtualLoop()

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(RuntimeError, match="time stands still"):
        loop.run_forever()
    loop.close()

"""Watches that lag, lose, repeat or reorder events, and clocks that differ, change nothing in the end."""

from __future__ import annotations

import pytest

from tests.thorough import seeds
from tests.unit.simulation.stale_reads import Kind, wrong_after


@pytest.mark.parametrize("seed", seeds(1, 5))
@pytest.mark.parametrize("kind", Kind)
def test_faults_of_watches_and_clocks_change_nothing_in_the_end(kind: Kind, seed: int):
    """End state, creates and deletes are those without faults, then nothing is written; ``stale_reads`` runs more."""
    wrong = wrong_after(kind, seed)
    assert not wrong, "\n".join(wrong)

"""Random walks over configuration files: the process ends where a fresh installation with the last file does."""

from __future__ import annotations

import pytest

from tests.thorough import seeds
from tests.unit.simulation.reconfiguring import wander


@pytest.mark.parametrize("seed", seeds(1, 20))
def test_ends_like_a_fresh_installation_whatever_the_file_contained_before(seed: int):
    """Invalid files change nothing and are logged once; the previous content then restarts no lower cluster."""
    wrong = wander(seed)
    assert not wrong, "\n".join([f"seed {seed}", *wrong])

"""A process that is killed at any of its writes: its successor ends where a process that is not killed ends."""

from __future__ import annotations

import pytest

from tests.thorough import IS_THOROUGH
from tests.unit.simulation.kill_after_write import VARIANTS, without_kill, wrong_after_kill

_SEEDS = 20
_WRITES = 58


def test_the_script_writes_everything_that_is_mirrored():
    """Pods, copies, tokens, claims, volumes, Services, endpoints and a namespace; nothing is wrong without a fault."""
    outcome, writes = without_kill()
    assert outcome.story.wrong == []
    assert writes >= _WRITES
    created = {name.split()[2] for name in outcome.counts if name.startswith("create ")}
    assert created >= {
        "pods", "configmaps", "secrets", "persistentvolumeclaims", "persistentvolumes", "services", "endpointslices",
        "namespaces",
    }  # fmt: skip


@pytest.mark.parametrize("number", range(1, _WRITES + 1, 1 if IS_THOROUGH else 19))
def test_a_kill_at_any_write_changes_nothing_in_the_end(number: int):
    """End state, creates and deletes are those without a kill; ``kill_after_write`` tries all variants and seeds."""
    wrong = wrong_after_kill(number, VARIANTS[number % len(VARIANTS)], seed=number % _SEEDS)
    assert not wrong, "\n".join(wrong)

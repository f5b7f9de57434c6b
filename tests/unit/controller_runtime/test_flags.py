"""The command lines' common words, as Go has them."""

from __future__ import annotations

import pytest

from controller_runtime import flags


@pytest.mark.parametrize(
    ("text", "seconds"), [("0", 0), ("10s", 10), ("1m30s", 90), ("250ms", 0.25), ("1.5h", 5400)]
)
def test_durations_are_gos(text, seconds):
    """Durations are written as Go writes them."""
    assert flags.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "10", "s", "1d", "-5s", "1m 30s"])
def test_other_durations_are_refused(text):
    """A number without a unit, or an unknown unit, is an error and not a guess."""
    with pytest.raises(ValueError, match="duration"):
        flags.parse_duration(text)

"""Growth of a function's time with its input."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from tests.thorough import IS_THOROUGH

T = TypeVar("T")

_NOISE = 0.002
"""Seconds; shorter measurements are noise."""
_RUNS = 3 if IS_THOROUGH else 1
"""The shortest is compared; a first comparison that fails is repeated in any case."""
_RATIO = 3.0
"""Time for twice the input over time for the input: 2 when it is linear, 4 when it is quadratic."""


def assert_linear(function: Callable[[T], object], make: Callable[[int], T], *, size: int = 50_000) -> None:
    """Fail when the function takes more than three times as long for twice the input.

    Args:
        function: what is measured.
        make: its argument of a size.
        size: the smaller one; it must take less than a second, so that a quadratic function fails soon.
    """
    once, twice = make(size), make(2 * size)
    for _ in range(5):  # another process may have had the core
        shorter, longer = _seconds(function, once), _seconds(function, twice)
        if longer <= max(_RATIO * shorter, _NOISE):
            break
    assert shorter < 1.0, f"{shorter:.2f} s for a size of {size}"
    assert longer <= max(_RATIO * shorter, _NOISE), (
        f"{shorter * 1000:.1f} ms for a size of {size}, {longer * 1000:.1f} ms for twice that"
    )


def _seconds(function: Callable[[T], object], argument: T) -> float:
    """Return the shortest of some runs, in CPU time of this thread."""
    times = []
    for _ in range(_RUNS):
        started = time.thread_time()
        function(argument)
        times.append(time.thread_time() - started)
        if times[-1] > 1.0:
            break
    return min(times)

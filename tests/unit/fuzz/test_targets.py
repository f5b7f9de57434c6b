"""Short runs of every fuzz target: a clear error or a correct result, in bounded time and memory, never a traceback."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from tests.fuzz.mutation import LONGEST, hostile
from tests.fuzz.target import Target, check
from tests.fuzz.targets import TARGETS
from tests.thorough import size, some

_INPUTS = size(20, 150)
_every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@_every_target
def test_accepts_every_seed(target: Target):
    """A target with refused seeds would fuzz only the first check."""
    for seed in target.seeds:
        target.parse(seed) if target.name not in {"watch", "error-response"} else check(target, seed)


@_every_target
def test_survives_hostile_inputs(target: Target):
    """Mutations of valid inputs; the number in a failure's message repeats it."""
    for number in range(_INPUTS):
        rng = random.Random(number)
        text = hostile(rng.choice(target.seeds), rng)
        try:
            check(target, text)
        except Exception as error:
            raise AssertionError(
                f"input {number}: {text[:200]!r}: {type(error).__name__}: {error}"
            ) from error


@_every_target
def test_memory_is_bounded_by_the_length_of_the_input(target: Target):
    """Repetition and nesting cost at most a fixed factor."""
    inputs = [seed * (LONGEST // len(seed)) for seed in target.seeds]
    inputs += [
        piece * (LONGEST // len(piece)) for piece in (b"[", b'{"a":', b"(", b"a,", b'"a",', b"&a [*a],")
    ]
    for text in some(inputs, 1):
        tracemalloc.start()
        try:
            check_untimed(target, text)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak < 128 * LONGEST, f"{peak} bytes for {text[:20]!r}…"


def check_untimed(target: Target, text: bytes) -> None:
    """Parse without the time limit, because tracing memory takes most of it."""
    try:
        target.parse(text)
    except target.errors:
        return

"""Measures how the translation of one object grows with each pair of its dimensions.

A dimension is something that a user can write many or much of: containers, bytes of annotations, ports. A kind of object
lists its dimensions (``Kind``), and ``assert_linear`` enlarges two of them at a time. Output, memory and time must grow
with the object's own bytes. A function that repeats a value for each element of another list grows with their product
instead. It passes only if it subtracts the repeated bytes or steps from the ``TranslationBudget``: here the budget
is a few times the object, so the translation of a large product is refused.
"""

from __future__ import annotations

import itertools
import time
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller_runtime.apimachinery.translation_budget import TooLargeError, TranslationBudget, json_size
from tests.thorough import some

Stage = Callable[[TranslationBudget], Any]
SCALES = (1, 2, 4)
_COUNTED = 6
"""Bytes of budget per byte of input: enough for values that are repeated a few times."""
_OUTPUT = 12
"""Maximum bytes of output per byte of input: a Service port becomes four variables."""
_MEMORY = 60
"""Maximum bytes of memory per byte of input; a dict with one short entry takes 300."""
_FIXED = 32 * 1024
"""Bytes that the smallest object may take."""
_RATIO = 2.0
"""Maximum growth of time over growth of the input."""
_NOISE = 0.001
"""Seconds; shorter differences are noise."""
_PAIRS = 1
"""Number of pairs per dimension in ``make unit``, so that each dimension is in two."""
_QUICK = 0.005
"""Seconds of a measurement with memory below which time is not measured again."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object, or an object with the objects that it references."""

    name: str
    dimensions: Mapping[str, int]
    """Size of each dimension at scale 1. All dimensions outside of a pair have size 1."""
    make: Callable[[Mapping[str, int]], Any]
    """Returns JSON values: the object with these sizes, and the objects that it references."""
    stages: Callable[[Any], Iterable[Stage]]
    """Returns the translations of the result of ``make``. Each gets a new budget and returns JSON values."""
    fixed: int = _FIXED
    """Bytes that the smallest object may take; compression takes 256 KiB."""


@dataclass(frozen=True, slots=True)
class Cost:
    """What one translation of an object took."""

    own: int
    """Bytes of the input as JSON."""
    output: int
    memory: int
    """0: not measured."""
    seconds: float

    def grows(self, fixed: int) -> str:
        """Return what is too much for an object of this size; empty: nothing."""
        if self.output > _OUTPUT * self.own + fixed:
            return "output"
        return "memory" if self.memory > _MEMORY * self.own + fixed else ""


def assert_linear(kind: Kind) -> None:
    """Fail if output, memory or time grow faster than the object's own bytes when two dimensions grow.

    Each pair is measured at the largest scale first, and at the others only if that takes long. ``make unit`` measures each
    dimension with few others.
    """
    pairs = list(itertools.combinations(kind.dimensions, 2))
    for pair in some(pairs, _PAIRS * len(kind.dimensions)):
        source = _made(kind, pair, SCALES[-1])
        for number, stage in enumerate(kind.stages(source)):
            cost = _cost(stage, json_size(source), with_memory=True)
            problem = cost.grows(kind.fixed)
            if not problem and cost.seconds > _QUICK and _is_slow(kind, pair, number):
                problem = "time"
            if problem:
                shown = "; ".join(str(_measured(kind, pair, scale, number)) for scale in SCALES)
                raise AssertionError(
                    f"{kind.name}, translation {number}: {' x '.join(pair)}: {problem} grows with the product: {shown}"
                )


def _is_slow(kind: Kind, pair: tuple[str, str], number: int) -> bool:
    """Report whether time grows faster than the object, repeatedly, because another process may have had the core."""
    for _ in range(5):
        first, last = (_measured(kind, pair, scale, number) for scale in (SCALES[0], SCALES[-1]))
        if last.seconds <= _NOISE + _RATIO * first.seconds * last.own / first.own:
            return False
    return True


def _measured(kind: Kind, pair: tuple[str, str], scale: int, number: int) -> Cost:
    source = _made(kind, pair, scale)
    return _cost(list(kind.stages(source))[number], json_size(source))


def _made(kind: Kind, pair: tuple[str, str], scale: int) -> Any:
    """Return an object in which two dimensions have ``scale`` times their size."""
    sizes = kind.dimensions.items()
    return kind.make({dimension: size * scale if dimension in pair else 1 for dimension, size in sizes})


def _cost(stage: Stage, own: int, *, with_memory: bool = False) -> Cost:
    budget = TranslationBudget(size=_COUNTED * own, steps=own)
    memory = 0
    if with_memory:
        tracemalloc.start()
    started = time.thread_time()
    try:
        result = stage(budget)
    except TooLargeError:
        result = None
    seconds = time.thread_time() - started
    if with_memory:
        memory = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    return Cost(own, json_size(result), memory, seconds)

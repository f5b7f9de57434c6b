"""The process is killed at its k-th API write: the write is stored, or is still on its way when the successor starts.

PYTHONPATH=. python -m tests.unit.simulation.kill_after_write 0 20     # every write, each variant, 20 seeds
PYTHONPATH=. python -m tests.unit.simulation.kill_after_write 0 1 17   # the story of one write
"""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from tests.fakes.apiserver.storage import Body
from tests.unit.simulation.network import later
from tests.unit.simulation.script import Outcome, compared, perform
from tests.unit.simulation.watchdog import PERIODIC
from tests.unit.simulation.world import World


@dataclass(frozen=True)
class Variant:
    """How the write and the restart follow one another, in seconds."""

    restart_after: float
    arrives_after: float = 0.0
    """Since the kill; 0: the server has stored it already."""


VARIANTS = (Variant(0.0), Variant(2.0), Variant(0.0, 0.3), Variant(0.0, 5.0), Variant(3.0, 1.0))


class KillAtWrite:
    """Counts the writes of all processes and kills the one that sends the k-th; the first has number 1.

    Attributes:
        seen: writes that were sent.
        request: the k-th.
    """

    def __init__(self, world: World, number: int, variant: Variant) -> None:
        self.seen = 0
        self.request = ""
        self._world, self._number, self._variant = world, number, variant

    async def __call__(
        self, request: str, action: Callable[[], Body], send: Callable[[], Awaitable[Body]]
    ) -> Body:
        """Carry out a write; the k-th has no answer."""
        who, cluster, verb, plural, key, *_ = request.split()
        if plural in PERIODIC:
            return await send()
        self.seen += 1
        if self.seen != self._number:
            return await send()
        self._world.note(f"killed at write {self._number}, {self._variant}: {request}")
        self.request = f"{verb} {cluster} {plural} {key}"
        later(self._variant.arrives_after, action)
        self._world.crash(who.partition(":")[2], restart_after=self._variant.restart_after)
        await asyncio.Event().wait()
        raise AssertionError


def run(number: int, variant: Variant, *, seed: int = 0) -> tuple[Outcome, KillAtWrite]:
    """Play the script with a kill at that write; 0: without."""
    faults: list[KillAtWrite] = []

    def arrange(world: World) -> None:
        world.on_write = KillAtWrite(world, number, variant)
        faults.append(world.on_write)

    return perform(seed, fault=arrange), faults[0]


@functools.cache
def without_kill(seed: int = 0) -> tuple[Outcome, int]:
    """How the script ends without a kill, and how many writes it takes."""
    outcome, fault = run(0, VARIANTS[0], seed=seed)
    return outcome, fault.seen


def wrong_after_kill(number: int, variant: Variant, *, seed: int = 0) -> list[str]:
    """What happened and what is wrong after a kill at that write; empty: nothing is.

    A create that arrives when the object has been created and deleted by the successor is not foreseeable: that object
    may be created and deleted once more.
    """
    outcome, fault = run(number, variant, seed=seed)
    is_late_create = variant.arrives_after and fault.request.startswith("create ")
    once_more = fault.request.removeprefix("create ") if is_late_create else ""
    wrong = compared(outcome, without_kill(seed)[0], once_more=once_more)
    return outcome.told(f"seed {seed}", wrong)


def _main(first: int, end: int, numbers: list[int]) -> None:
    for seed in range(first, end):
        for number in numbers or range(1, without_kill(seed)[1] + 1):
            for variant in VARIANTS:
                if numbers:
                    print(*run(number, variant, seed=seed)[0].story.changes, sep="\n")  # noqa: T201
                if wrong := wrong_after_kill(number, variant, seed=seed):
                    print(*wrong, sep="\n    ", flush=True)  # noqa: T201


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), [int(text) for text in sys.argv[3:]])

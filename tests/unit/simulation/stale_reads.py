"""Watches that lag, lose, repeat or reorder events, and processes with different clocks: they end where others end.

PYTHONPATH=. python -m tests.unit.simulation.stale_reads 0 1000        # seeds of every kind, failures are printed
PYTHONPATH=. python -m tests.unit.simulation.stale_reads 17 18 gap     # with one seed, the story is printed, too
"""

from __future__ import annotations

import asyncio
import enum
import functools
import random
import sys

from clusterset.model import names
from tests.fakes.apiserver.server import Server
from tests.unit.simulation.network import Weather
from tests.unit.simulation.script import PAUSE, SINGLE, Outcome, compared, perform
from tests.unit.simulation.world import Plan, World

_PAIR: Plan = {"a": ("one", ["vn-a"]), "b": ("one", ["vn-b"])}
_BEFORE = 0.01
"""Seconds by which a fault starts before what users do, so that watches report nothing of it."""
_SKEW = 900.0
"""Largest difference between a process' clock and the clusters' clocks, in seconds."""


class Kind(enum.StrEnum):
    """What is wrong."""

    LAG = "lag"
    """Watches are some revisions behind, also after a restart. Lists are consistent reads."""
    GAP = "gap"
    """Events are compacted before the watches report them: 410 Gone, and a list without what came and went."""
    DISORDER = "disorder"
    """Events are repeated, and those of different objects come in any order."""
    SKEW = "skew"
    """Two processes on one lower cluster have clocks that differ by minutes; each is killed and restarted."""


class _Faults:
    """Arranges the faults of each phase at random times in its first pause; the second pause is without faults."""

    def __init__(self, kind: Kind, seed: int) -> None:
        self._kind, self._chance = kind, random.Random(f"{kind} {seed}")

    def start(self, world: World) -> None:
        """Arrange the faults of the first phase."""
        if self._kind is Kind.SKEW:
            world.skews = {name: self._chance.uniform(-_SKEW, _SKEW) for name in _PAIR}
            world.note(f"skews {world.skews}")
        self._arrange(world, 0.0)

    def between(self, world: World, _phase: str) -> bool:
        """Arrange the faults of the next phase; it starts after another pause."""
        self._arrange(world, PAUSE - _BEFORE)
        return True

    def _arrange(self, world: World, begin: float) -> None:
        loop, chance = asyncio.get_running_loop(), self._chance
        for server in () if self._kind is Kind.SKEW else world.servers:
            weather = world.weathers[server.name]
            for first in (chance.choice([0.0, chance.uniform(0.0, 1.0)]), chance.uniform(50.0, 65.0)):
                last = first + chance.choice([chance.uniform(0.1, 2.0), chance.uniform(2.0, 40.0)])
                loop.call_later(begin + first, self._begin, world, server, weather)
                loop.call_later(begin + last, self._end, world, server, weather)
        if self._kind in {Kind.LAG, Kind.SKEW}:
            loop.call_later(begin + chance.choice([0.0, 60.0]) + chance.uniform(0.0, 2.0), self._kill, world)

    def _begin(self, world: World, server: Server, weather: Weather) -> None:
        if self._kind is Kind.LAG:
            weather.behind = self._chance.choice([1, 2, 5, 20, 100])
        elif self._kind is Kind.GAP:
            plurals = sorted(server.objects)
            weather.held = set(self._chance.sample(plurals, self._chance.randint(1, len(plurals))))
        elif self._kind is Kind.DISORDER:
            weather.disorder, weather.lag = 0.5, self._chance.choice([0.1, 1.0, 10.0])
        changed = {name: value for name, value in vars(weather).items() if value}
        world.note(f"{server.name} {changed}")

    def _end(self, world: World, server: Server, weather: Weather) -> None:
        weather.clear()
        if self._kind is Kind.GAP:
            server.floor = server.version
            for process in world.processes.values():
                for connection in process.connections:
                    if connection.server is server:
                        connection.break_watches()
        world.note(f"{server.name} well")
        world.news()

    def _kill(self, world: World) -> None:
        """Restart a process when its last writes have arrived: a later one may be carried out once more."""
        name = self._chance.choice(sorted(world.processes))
        world.note(f"kill {name}")
        world.crash(name, restart_after=self._chance.uniform(5.0, 10.0))


def run(kind: Kind, seed: int) -> Outcome:
    """Play the script with faults of a kind."""
    faults = _Faults(kind, seed)
    plan = _PAIR if kind is Kind.SKEW else SINGLE
    return _comparable(perform(seed, fault=faults.start, between=faults.between, plan=plan))


def wrong_after(kind: Kind, seed: int) -> list[str]:
    """Return what happened and what differs from a run without faults; empty when nothing does."""
    outcome = run(kind, seed)
    wrong = compared(outcome, _without_faults(kind is Kind.SKEW, seed))
    return outcome.told(f"{kind} {seed}", wrong)


@functools.cache
def _without_faults(is_pair: bool, seed: int) -> Outcome:  # noqa: FBT001 - a key of the cache
    return _comparable(perform(seed, plan=_PAIR if is_pair else SINGLE))


def _comparable(outcome: Outcome) -> Outcome:
    """Remove what depends on the order of events.

    The environment of lower pods has the Services that a cache shows when a pod is created, as with a kubelet. A copy that
    pods of two processes use has the node label of the process that came first.
    """
    for state in outcome.states:
        for what, body in state.items():
            plural = what.split()[1]
            if plural == "pods":
                for container in body["spec"]["containers"]:
                    container.pop("env", None)
            labels = body["metadata"].get("labels") or {}
            if plural in {"configmaps", "secrets"} and names.LABEL_TOKEN_OF not in labels:
                labels.pop(names.LABEL_NODE, None)
    return outcome


def _main(first: int, end: int, kinds: list[Kind]) -> None:
    for seed in range(first, end):
        for kind in kinds:
            if end == first + 1:
                print(*run(kind, seed).story.changes, sep="\n")  # noqa: T201
            if wrong := wrong_after(kind, seed):
                print(*wrong, sep="\n    ", flush=True)  # noqa: T201


if __name__ == "__main__":
    _main(int(sys.argv[1]), int(sys.argv[2]), [Kind(text) for text in sys.argv[3:]] or list(Kind))

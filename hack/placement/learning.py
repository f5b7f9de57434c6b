"""Evaluates the learned agent: decisions logged in a simulation, and the rewards that other policies would have had.

Clusters differ in how fast pods start and how often they fail, more so under load, and for some kinds of
pods. Half-way through the second half, some clusters change. The first half of the decisions is for learning,
the second for estimates.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hack.placement.estimates import Estimate, Logged, doubly_robust, inverse_propensity
from multi_scheduler.agents.learned import Bandit, Decision, Memory

CLUSTERS, KINDS, DECISIONS = 10, 12, 3000
SPLIT, CHANGE, AFTER = DECISIONS // 2, DECISIONS * 3 // 4, 300
"""Decision where learning ends, decision where some clusters change, and how many decisions are "just after" it."""
POLICIES = ("random", "least-allocated", "fit", "learned", "oracle")
SCENARIOS = ("different", "alike")
_JITTER = (0.7, 0.85, 1.0, 1.15, 1.3)
_FEATURES = 9
_RARE = 3
"""Number of rare kinds; one pod in a hundred is of each."""


@dataclass(slots=True)
class _Cluster:
    seconds: float
    """Seconds until a pod has started on the idle cluster."""
    failures: float
    bad_for: set[int]
    """Kinds of pods that start three times slower; their probability to fail is 0.25 higher."""
    load: float


@dataclass(frozen=True, slots=True)
class _Case:
    """A decision with the values that only the simulation has."""

    logged: Logged
    loads: list[float]
    values: list[float]
    """Expected reward by cluster."""
    kind: int


class World:
    """Clusters with hidden properties."""

    def __init__(self, seed: int, *, alike: bool) -> None:
        """Draw the clusters; alike: they differ only in their loads."""
        self._alike = alike
        self.random = random.Random(seed)  # noqa: S311 - a simulation is to be repeatable
        self.clusters = [self._cluster() for _ in range(CLUSTERS)]

    def _cluster(self) -> _Cluster:
        draw = self.random
        return _Cluster(
            seconds=8.0 if self._alike else 2.0 * 15.0 ** draw.random(),
            failures=0.0 if self._alike else 0.12 * draw.random() ** 2,
            bad_for=set() if self._alike else {kind for kind in range(KINDS) if draw.random() < 0.15},
            load=draw.uniform(0.2, 0.9),
        )

    def change(self) -> None:
        """Replace three clusters by others, as after an upgrade or a broken registry."""
        for number in self.random.sample(range(CLUSTERS), 3):
            self.clusters[number] = self._cluster()

    def step(self) -> None:
        """Change the loads at random."""
        for cluster in self.clusters:
            cluster.load = min(0.98, max(0.05, cluster.load + self.random.gauss(0, 0.03)))

    def chance(self, number: int, kind: int) -> tuple[float, float]:
        """Return seconds to start, and the probability to fail."""
        cluster = self.clusters[number]
        is_bad = kind in cluster.bad_for
        seconds = cluster.seconds * (1 + 3 * cluster.load**2) * (3 if is_bad else 1)
        return seconds, min(1.0, cluster.failures + (0.25 if is_bad else 0.0))

    def kind(self) -> int:
        """Draw a kind of pod."""
        is_rare = self.random.random() < 0.01 * _RARE
        return self.random.randrange(_RARE) if is_rare else self.random.randrange(_RARE, KINDS)


def _log(seed: int, *, alike: bool) -> tuple[list[_Case], Bandit]:
    """Simulate all decisions of the agent; return them, and the agent's model after ``SPLIT`` decisions."""
    world, bandit = World(seed, alike=alike), Bandit(_FEATURES, seed=seed)
    memory, frozen, cases = Memory(bandit), Bandit(_FEATURES, seed=seed), []
    names = [f"vn-{number}" for number in range(CLUSTERS)]
    for number in range(DECISIONS):
        if number == CHANGE:
            world.change()
        if number == SPLIT:
            frozen.precision = [list(row) for row in bandit.precision]
            frozen.weighted = list(bandit.weighted)
        world.step()
        kind, cpu = world.kind(), world.random.random()
        features = [
            [
                1.0,
                one.load,
                one.load,
                one.load,
                0.1,
                float(one.load > 0.9),
                cpu,
                *memory.recent(name, f"{kind}"),
            ]
            for name, one in zip(names, world.clusters, strict=True)
        ]
        choice = bandit.choose(features)
        uid = f"{number}"
        memory.decided(uid, Decision(names, features, choice.propensities, f"{kind}"))
        memory.bound(uid, names[choice.best], 0.0)
        chances = [world.chance(place, kind) for place in range(CLUSTERS)]
        seconds, failure = chances[choice.best]
        fails = world.random.random() < failure
        reward = memory.failed(uid) if fails else memory.runs(uid, seconds * world.random.choice(_JITTER))
        memory.forget(uid)
        logged = Logged(features, choice.best, choice.propensities[choice.best], reward or 0.0)
        values = [
            (1 - failed) * _mean([2.0 ** (-start * jitter / 30.0) for jitter in _JITTER])
            for start, failed in chances
        ]
        cases.append(_Case(logged, [cluster.load for cluster in world.clusters], values, kind))
    return cases, frozen


def run(scenario: str, seed: int) -> dict[str, Any]:
    """Return estimates and true rewards of all policies on the second half, and the agent's in parts of that half."""
    cases, frozen = _log(seed, alike=scenario == "alike")
    learning, test = cases[:SPLIT], cases[SPLIT:]
    model = Bandit(_FEATURES, discount=0.9999, seed=seed)
    for case in learning:
        model.add(case.logged.candidates[case.logged.chosen], case.logged.reward)
    known = {id(case.logged): case for case in test}
    choosers: dict[str, Callable[[_Case], int]] = {
        "least-allocated": lambda case: _best([-load for load in case.loads]),
        "fit": lambda case: _best(case.loads),
        "learned": lambda case: _best([frozen.expected(candidate) for candidate in case.logged.candidates]),
        "oracle": lambda case: _best(case.values),
    }
    found: dict[str, Any] = {}
    for name in POLICIES:
        shares = {
            key: [1 / CLUSTERS] * CLUSTERS if name == "random" else _certain(choosers[name](case))
            for key, case in known.items()
        }
        logs = [case.logged for case in test]

        def policy(logged: Logged, shares: dict[int, list[float]] = shares) -> Sequence[float]:
            return shares[id(logged)]

        true = [
            sum(share * value for share, value in zip(shares[id(case.logged)], case.values, strict=True))
            for case in test
        ]
        found[name] = {
            "true": round(_mean(true), 4),
            "ips": _rounded(inverse_propensity(logs, policy)),
            "dr": _rounded(doubly_robust(logs, policy, model.expected)),
        }
    online = [(case, case.values[case.logged.chosen]) for case in test]
    found["online"] = {"true": round(_mean([value for _, value in online]), 4)}
    return {"scenario": scenario, "seed": seed, "policies": found, "segments": _segments(online)}


def _segments(online: Sequence[tuple[_Case, float]]) -> dict[str, list[float]]:
    """Return, by part of the decisions, the agent's reward and the reward if the emptiest cluster were always chosen."""
    change = CHANGE - SPLIT
    parts = {
        "before the change": [one for number, one in enumerate(online) if number < change],
        f"the {AFTER} decisions after it": online[change : change + AFTER],
        "later": online[change + AFTER :],
        "rare kinds of pods": [one for one in online if one[0].kind < _RARE],
    }
    return {
        name: [
            round(_mean([value for _, value in part]), 4),
            round(_mean([case.values[_best([-load for load in case.loads])] for case, _ in part]), 4),
        ]
        for name, part in parts.items()
    }


def _best(values: Sequence[float]) -> int:
    return values.index(max(values))


def _certain(number: int) -> list[float]:
    return [float(place == number) for place in range(CLUSTERS)]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / max(1, len(values))


def _rounded(estimate: Estimate) -> list[float]:
    return [round(value, 4) for value in (estimate.mean, estimate.low, estimate.high)]

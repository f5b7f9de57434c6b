"""Measures, by agent, how often nodes are overloaded when tasks use less than they request, or temporarily more.

All agents get the same tasks with the same usage, so mean utilization is equal. A task waits while
no cluster has room for it or the agent rejects all clusters. In each lower cluster the stock scheduler chooses
the node.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hack.placement import usage
from hack.placement.usage import Job
from multi_scheduler.agent import Agent, AgentContext
from multi_scheduler.agents.load import LoadAgent
from multi_scheduler.agents.safe import SafeAgent
from multi_scheduler.extender import protocol
from multi_scheduler.state.cluster import scoring
from multi_scheduler.state.cluster.index import ClusterIndex
from multi_scheduler.state.cluster.pod_requirements import Demand, Placed, demand
from multi_scheduler.usage import Sample, UsageStore
from multi_scheduler.view import LowerNode
from multi_scheduler.virtual_node import VirtualNode

CLUSTERS, NODES, CPU = 10, 10, 32_000
MINUTES, WARM_UP = 600, 180
"""Simulated minutes, and how many of the first ones are not counted."""
APPS = 40
RATES = {"medium": 3.5}
"""Tasks per minute."""
AGENTS: dict[str, Mapping[str, Any] | None] = {
    "fit": None,
    "fit Spread": None,
    "load TargetLoadPacking": {"policy": "TargetLoadPacking"},
    "load LoadVariationRiskBalancing": {"policy": "LoadVariationRiskBalancing"},
    "load LowRiskOverCommitment": {"policy": "LowRiskOverCommitment"},
    "safe": {},
}


@dataclass(slots=True)
class _Running:
    job: Job
    node: tuple[int, str]
    usage: usage.Usage
    ends: int


class Simulation:
    """One run for an agent, a load and a seed; also the agent's ``view``, from which it reads nodes and usage."""

    is_used = False

    def __init__(self, agent: str, rate: str, seed: int) -> None:
        """Create empty clusters."""
        self._agent, self._rate, self._seed = agent, rate, seed
        self._random = random.Random(seed + 7)  # noqa: S311 - a simulation is to be repeatable
        self._minute = 0
        self.indexes = [ClusterIndex() for _ in range(CLUSTERS)]
        self.stores = [
            UsageStore(f"{number}", clock=lambda: 60.0 * self._minute) for number in range(CLUSTERS)
        ]
        allocatable = {"cpu": f"{CPU}m", "memory": f"{CPU << 2}Mi", "pods": "200"}
        for number, index in enumerate(self.indexes):
            for node in range(NODES):
                index.upsert_node(
                    {"metadata": {"name": f"n{number}-{node}"}, "status": {"allocatable": allocatable}}
                )
        settings = AGENTS[agent]
        self._scorer: Agent | None = None
        if settings is not None:
            view: Any = self
            none: Any = None
            context = AgentContext(agent, settings, none, {}, view=view)
            self._scorer = (SafeAgent if agent == "safe" else LoadAgent)(context)
        self._nodes = [VirtualNode(f"vn-{number}", f"{number}", {}, {}) for number in range(CLUSTERS)]
        self._judged: dict[int, scoring.Prediction] = {}
        self._running: list[_Running] = []
        self._waiting: list[Job] = []

    def nodes(self, pod: Mapping[str, Any], node: VirtualNode) -> list[LowerNode]:
        """Return the lower nodes of a virtual node for the pod that is being scheduled, the most likely one first."""
        number = int(node.cluster)
        predicted = self._judged.get(number)
        if predicted is None:
            return []
        index, uid = self.indexes[number], pod["metadata"]["uid"]
        return [
            LowerNode(found, f"{number}", index.on(name), self.stores[number], uid)
            for name in predicted.likely
            if (found := index.node(name)) is not None
        ]

    async def run(self) -> dict[str, Any]:
        """Run all minutes.

        Returns:
            the parameters; in percent utilization, node time above 90 % CPU, and task time on nodes without enough CPU;
            and the mean number of waiting tasks.
        """
        arriving = usage.jobs(self._seed, MINUTES, RATES[self._rate], APPS)
        bursts = usage.app_bursts(self._seed, MINUTES, APPS)
        busy = hot = nodes = throttled = tasks = waited = 0.0
        for self._minute in range(MINUTES):
            self._end()
            queue, self._waiting = self._waiting + arriving[self._minute], []
            for job in queue:
                await self._schedule(job)
            wanted, on = self._use(bursts[self._minute])
            if self._minute < WARM_UP:
                continue
            nodes += CLUSTERS * NODES
            waited += len(self._waiting)
            for node, cpu in wanted.items():
                busy += min(cpu, CPU) / CPU
                hot += cpu > 0.9 * CPU
                throttled += on[node] if cpu > CPU else 0
                tasks += on[node]
        return {
            "agent": self._agent,
            "load": self._rate,
            "seed": self._seed,
            "utilization": round(100 * busy / nodes, 3),
            "overloaded": round(100 * hot / nodes, 4),
            "throttled": round(100 * throttled / tasks, 4),
            "waiting": round(waited / (MINUTES - WARM_UP), 3),
        }

    def _end(self) -> None:
        kept = []
        for one in self._running:
            if one.ends > self._minute:
                kept.append(one)
            else:
                self.indexes[one.node[0]].remove(f"{one.job.seed}")
        self._running = kept

    def _use(self, bursting: set[int]) -> tuple[dict[str, float], dict[str, int]]:
        """Simulate a minute and record each node's usage; return by node the CPU that its tasks need, and their number."""
        wanted = {f"n{number}-{node}": 0.0 for number in range(CLUSTERS) for node in range(NODES)}
        on = dict.fromkeys(wanted, 0)
        for one in self._running:
            wanted[one.node[1]] += one.usage.next(app_begins=one.job.app in bursting)
            on[one.node[1]] += 1
        time = 60.0 * self._minute + 30
        for number, store in enumerate(self.stores):
            for node in range(NODES):
                name = f"n{number}-{node}"
                store.add(name, Sample(time, cpu=min(wanted[name], CPU)), capacity=CPU)
        return wanted, on

    async def _schedule(self, job: Job) -> None:
        pod = _pod(job)
        asked = demand(pod)
        self._judged = {
            number: scoring.predict(index, asked, slots)
            for number, index in enumerate(self.indexes)
            if (slots := index.feasible(asked))
        }
        number = await self._choose(pod, asked)
        if number is None:
            self._waiting.append(job)
            return
        # The lower cluster's scheduler takes the node with the most free CPU: the predicted one.
        node = self._judged[number].place.node
        limits = {"cpu": job.limit}
        self.indexes[number].place(
            f"{job.seed}", Placed(node, asked.requests, limits=limits, since=60.0 * self._minute)
        )
        self._running.append(_Running(job, (number, node), usage.Usage(job), self._minute + job.minutes))

    async def _choose(self, pod: Mapping[str, Any], asked: Demand) -> int | None:
        passing = [node for node in self._nodes if int(node.cluster) in self._judged]
        if self._scorer is None:
            strategy: scoring.Strategy = "Spread" if "Spread" in self._agent else "BestFit"
            scores = {
                node.name: scoring.score(
                    self.indexes[int(node.cluster)], self._judged[int(node.cluster)], strategy
                )
                for node in passing
            }
        else:
            rejected = await self._scorer.filter(pod, passing)
            passing = [node for node in passing if node.name not in rejected.unresolvable]
            scores = dict(await self._scorer.score(pod, passing) or {})
        if not passing:
            return None
        points = [round(scores[node.name] * protocol.MAX_SCORE) for node in passing]
        best = [node for node, found in zip(passing, points, strict=True) if found == max(points)]
        return int(self._random.choice(best).cluster)


def _pod(job: Job) -> dict[str, Any]:
    memory = f"{job.request << 2}Mi"  # proportional to the CPU, so that memory changes no choice
    resources = {
        "requests": {"cpu": f"{job.request}m", "memory": memory},
        "limits": {"cpu": f"{job.limit}m", "memory": memory},
    }
    return {
        "metadata": {"uid": f"{job.seed}", "namespace": "risk"},
        "spec": {"containers": [{"name": "task", "resources": resources}]},
    }


def run(agent: str, rate: str, seed: int) -> dict[str, Any]:
    """Return the figures of one run."""
    return asyncio.run(Simulation(agent, rate, seed).run())


def runs(seeds: Sequence[int]) -> list[tuple[str, str, int]]:
    """Return agent, rate and seed of all runs."""
    return [(agent, rate, seed) for rate in RATES for seed in seeds for agent in AGENTS]

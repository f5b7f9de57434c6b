"""Response time of agents: 20 clusters of 500 nodes, 50,000 pods in the cache, one process, no network.

``python -m tests.benchmarks.bench_multi_scheduler [AGENT ...]``: without names, all included agents. Each
call is the cost of one pod: arguments decoded, filter with all agents, reservations made, prioritize, results
encoded. One in ten pods fits nowhere, which is the costly case.
"""

from __future__ import annotations

import asyncio
import random
import resource
import statistics
import sys
import time
from types import SimpleNamespace
from typing import Any

import msgspec

from controller_runtime.objects import from_dict
from multi_scheduler.agent import VirtualNode
from multi_scheduler.config import AgentConfig, Config, SchedulerClusterConfig
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.fit.agent import FitAgent
from multi_scheduler.fit.feeds.cluster_feed import shrink_pod
from multi_scheduler.formulas.pressure import Pressure
from multi_scheduler.shared import Shared
from multi_scheduler.usage.store import Sample

CLUSTERS, NODES, PODS, CALLS = 20, 500, 50_000, 2000
AGENTS = ("fit", "safe", "load", "pigeon", "congestion", "pressure", "cost")
SETTINGS = {"cost": {"prices": {f"c{number}": {"cpu": 0.01 * (number + 1)} for number in range(CLUSTERS)}}}


class _Directory:
    """Every candidate is a virtual node."""

    async def wait(self, _seconds: float) -> bool:
        return True

    def find(self, name: str, _node: Any) -> VirtualNode:
        return VirtualNode(name, name.removeprefix("vn-"), {}, {})


def _node(name: str, number: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name, "zone": f"z{number % 3}", "pool": f"p{number % 5}"},
        },
        "spec": {"taints": [{"key": "dedicated", "effect": "NoSchedule"}] if number % 10 == 0 else []},
        "status": {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110"}},
    }


def _pod(number: int, *, cpu: str, node: str = "", template: int = 0) -> dict[str, Any]:
    selector = f'{{"nodeSelector": {{"pool": "p{template % 5}"}}}}'
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "bench",
            "uid": f"uid-{number}",
            "labels": {"app": f"a{template}"},
            "annotations": {"clusterSelector": selector} if template % 2 else {},
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu, "memory": "1Gi"}}}],
            "volumes": [{"name": "kube-api-access", "projected": {}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": "Running"},
    }


def _measure(shared: Shared, clusters: list[str]) -> None:
    """Return samples of full windows, of nodes between idle and busy."""
    for cluster in clusters:
        store = shared.stores[cluster]
        for number in range(NODES):
            for sample in range(60):
                cpu, memory = random.uniform(0, 12_000), random.uniform(0, 48) * 1024**3
                store.add(f"{cluster}-{number}", Sample(sample, cpu, memory, Pressure()), capacity=16_000)


async def main() -> None:
    """Fill the cache, call the agents, print the times."""
    random.seed(1)
    clusters = [f"c{number}" for number in range(CLUSTERS)]
    fake: Any = SimpleNamespace(cluster="bench")
    wanted = [AgentConfig(name=name, config=SETTINGS.get(name, {})) for name in sys.argv[1:] or AGENTS]
    configured = [SchedulerClusterConfig(name=name, kubeconfig="") for name in clusters]
    shared = Shared(Config(clusters=configured, agents=wanted), fake, dict.fromkeys(clusters, fake))
    agents = [Weighted(one.name, shared.agent(one), 1.0) for one in wanted]
    agent = agents[0].agent
    assert isinstance(agent, FitAgent)
    started = time.perf_counter()
    for cluster in clusters:
        for number in range(NODES):
            agent.indexes[cluster].upsert_node(_node(f"{cluster}-{number}", number))
    kept = []
    for number in range(PODS):
        cluster = clusters[number % CLUSTERS]
        pod = shrink_pod(from_dict(_pod(number, cpu="2500m", node=f"{cluster}-{random.randrange(NODES)}")))
        kept.append(pod)  # content of an informer's store
        agent.feeds[cluster]._pod(pod)
    _measure(shared, clusters)
    filled = time.perf_counter() - started
    for feed in agent.feeds.values():
        for informer in feed.informers:
            informer._synced.set()
    directory: Any = _Directory()
    extender = Extender(agents, directory, upper=fake)
    names = [f"vn-{cluster}" for cluster in clusters]
    bodies = [
        msgspec.json.encode(
            {
                "Pod": _pod(PODS + number, cpu="17" if number % 10 == 0 else "2", template=number % 20),
                "NodeNames": names,
            }
        )
        for number in range(CALLS)
    ]
    took, rejected = [], 0
    begun = time.perf_counter()
    for number, body in enumerate(bodies):
        at = time.perf_counter()
        asked = protocol.candidates(body)
        answer = await extender.filter(asked)
        protocol.filter_result(asked, answer.passing, answer.failed, answer.unresolvable)
        if answer.passing:
            left = protocol.Candidates(asked.pod, answer.passing, None)
            protocol.priorities(await extender.prioritize(left))
        took.append(time.perf_counter() - at)
        rejected += not answer.passing
        agent.reservations.bind(f"uid-{PODS + number}", names[number % CLUSTERS])
        agent.reservations.release(f"uid-{PODS + number}")
    elapsed = time.perf_counter() - begun
    took.sort()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{CLUSTERS} clusters x {NODES} nodes, {len(kept)} pods, filled in {filled:.1f} s, peak {memory:.0f} MiB"
    )
    print(
        f"{CALLS} pods ({rejected} fit nowhere): {CALLS / elapsed:.0f} pods/s, p50 {statistics.median(took) * 1000:.1f} ms, "
        f"p99 {took[int(len(took) * 0.99)] * 1000:.1f} ms, max {took[-1] * 1000:.1f} ms"
    )


if __name__ == "__main__":
    asyncio.run(main())

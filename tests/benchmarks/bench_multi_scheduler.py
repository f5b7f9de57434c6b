"""Response time of agents: 20 clusters of 500 nodes, 50,000 pods in the cache, one process, no network.

``python -m tests.benchmarks.bench_multi_scheduler [AGENT ...]``: without names, all installed agents. Each call
is the cost of one pod: arguments decoded, filter with all agents, reservations made, prioritize, results
encoded. One in ten pods fits nowhere, which is the costly case. CPU time does not count the time in which other
programs had the CPU.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import resource
import tempfile
import time
from collections.abc import Sequence
from importlib import metadata
from types import SimpleNamespace
from typing import Any

import msgspec

from clusterset.config import Cluster
from controller_runtime.client.limits import CacheBudget
from controller_runtime.objects import from_dict
from controller_runtime.process import lifecycle
from multi_scheduler.agent import GROUP
from multi_scheduler.agents.fit.agent import FitAgent
from multi_scheduler.agents.learned import LearnedAgent
from multi_scheduler.bound_pods import bound_pods
from multi_scheduler.config import AgentConfig, Config
from multi_scheduler.extender import protocol
from multi_scheduler.extender.extender import Extender, Weighted
from multi_scheduler.shared import FIT, Shared
from multi_scheduler.state.cluster_feed import shrink_pod
from multi_scheduler.usage import Pressure, Sample
from multi_scheduler.virtual_node import VirtualNode
from tests.unit.multi_scheduler.lower_pods import mark_synced

CLUSTERS, NODES, PODS, CALLS = 20, 500, 50_000, 2000
DEVICE = "example.com/gpu-share"
INSTALLED = sorted(
    {one.name for one in metadata.entry_points(group=GROUP)} - {"template"},
    key=lambda name: (name != FIT, name),
)
"""Fit comes first, because it finds the lower nodes that the other agents score."""


def settings(directory: str) -> dict[str, dict[str, Any]]:
    """Return the configuration of the agents that need one; the learned agent writes its files to a folder."""
    return {
        "fit": {"devices": {DEVICE: 100}},
        "cost": {"prices": {f"c{number}": {"cpu": 0.01 * (number + 1)} for number in range(CLUSTERS)}},
        "fragmentation": {"resource": DEVICE},
        "learned": {
            "mode": "Active",
            "state": f"{directory}/state.json",
            "decisions": f"{directory}/decisions.jsonl",
        },
    }


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
        "status": {"allocatable": {"cpu": "16", "memory": "64Gi", "pods": "110", DEVICE: "400"}},
    }


def _pod(number: int, *, cpu: str, node: str = "", template: int = 0) -> dict[str, Any]:
    """Return a pod; half of the templates take a share of a device, or two devices."""
    selector = f'{{"nodeSelector": {{"pool": "p{template % 5}"}}}}'
    share = (0, 25, 0, 50, 0, 200)[template % 6]
    requests = {"cpu": cpu, "memory": "1Gi", **({DEVICE: str(share)} if share else {})}
    return {
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "bench",
            "uid": f"uid-{number}",
            "labels": {"app": f"a{template}"},
            "annotations": {"clusterSelector": selector} if template % 2 else {},
        },
        "spec": {
            "containers": [{"name": "c", "resources": {"requests": requests}}],
            "volumes": [{"name": "kube-api-access", "projected": {}}],
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": "Running"},
    }


def _measure(shared: Shared, clusters: list[str]) -> None:
    """Store samples of full windows, of nodes between idle and busy."""
    for cluster in clusters:
        store = shared.state.clusters[cluster].measured.usage
        for number in range(NODES):
            for sample in range(60):
                cpu, memory = random.uniform(0, 12_000), random.uniform(0, 48) * 1024**3
                store.add(f"{cluster}-{number}", Sample(sample, cpu, memory, Pressure()), capacity=16_000)


def _created(wanted: Sequence[AgentConfig], clusters: Sequence[str]) -> tuple[Shared, list[Weighted]]:
    fake: Any = SimpleNamespace(cluster="bench", caches=CacheBudget(0, cluster="bench"))
    bound = bound_pods(fake)
    configured = [Cluster(name=name, kubeconfig="") for name in clusters]
    config = Config(clusters=configured, agents=list(wanted))
    shared = Shared(config, fake, bound)
    for cluster in configured:
        shared.add(cluster, fake)
    return shared, [Weighted(one.name, shared.agent(one), 1.0) for one in wanted]


def _fill(fit: FitAgent, clusters: Sequence[str]) -> list[Any]:
    """Add nodes and pods to the indexes; return what an informer would also keep in its store."""
    for cluster in clusters:
        for number in range(NODES):
            fit.state.clusters[cluster].index.upsert_node(_node(f"{cluster}-{number}", number))
    kept = []
    for number in range(PODS):
        cluster = clusters[number % CLUSTERS]
        node = f"{cluster}-{random.randrange(NODES)}"
        pod = shrink_pod(from_dict(_pod(number, cpu="2500m", node=node, template=random.randrange(20))))
        kept.append(pod)
        fit.state.clusters[cluster].feed._pod(pod)
    mark_synced(fit.state)
    return kept


async def main(names: Sequence[str], directory: str) -> None:
    """Fill the cache, call the agents, print the times."""
    random.seed(1)
    clusters = [f"c{number}" for number in range(CLUSTERS)]
    configured = settings(directory)
    wanted = [AgentConfig(name=name, config=configured.get(name, {})) for name in names]
    shared, agents = _created(wanted, clusters)
    fit = agents[0].agent
    assert isinstance(fit, FitAgent)
    learned = [one.agent for one in agents if isinstance(one.agent, LearnedAgent)]
    started = time.perf_counter()
    kept = _fill(fit, clusters)
    _measure(shared, clusters)
    filled = time.perf_counter() - started
    lifecycle.tune_gc()  # as the program does when it starts
    fake: Any = SimpleNamespace(cluster="bench", caches=CacheBudget(0, cluster="bench"))
    directory_of_nodes: Any = _Directory()
    extender = Extender(agents, directory_of_nodes, upper=fake)
    nodes = [f"vn-{cluster}" for cluster in clusters]
    bodies = [
        msgspec.json.encode(
            {
                "Pod": _pod(PODS + number, cpu="17" if number % 10 == 0 else "2", template=number % 20),
                "NodeNames": nodes,
            }
        )
        for number in range(CALLS)
    ]
    took, used, rejected = [], [], 0
    for number, body in enumerate(bodies):
        at, cpu = time.perf_counter(), time.process_time()
        asked = protocol.candidates(body)
        answer = await extender.filter(asked)
        protocol.filter_result(asked, answer.passing, answer.failed, answer.unresolvable)
        if answer.passing:
            left = protocol.Candidates(asked.pod, answer.passing, None)
            protocol.priorities(await extender.prioritize(left))
        took.append(time.perf_counter() - at)
        used.append(time.process_time() - cpu)
        rejected += not answer.passing
        uid, chosen = f"uid-{PODS + number}", nodes[number % CLUSTERS]
        fit.state.reservations.bind(uid, chosen)
        fit.state.reservations.release(uid)
        for one in learned:  # so that the next call draws new models, as after each reward
            if one.memory.bound(uid, chosen, at):
                one.memory.runs(uid, at + number % 30)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"agents: {', '.join(names)}")
    print(
        f"{CLUSTERS} clusters x {NODES} nodes, {len(kept)} pods, filled in {filled:.1f} s, peak {memory:.0f} MiB"
    )
    print(f"{CALLS} pods ({rejected} fit nowhere)")
    for kind, times in (("wall", took), ("CPU", used)):
        times.sort()
        figures = {
            "mean": sum(times) / CALLS,
            "p50": times[CALLS // 2],
            "p99": times[CALLS * 99 // 100],
            "max": times[-1],
        }
        print(f"{kind:4}", ", ".join(f"{name} {value * 1000:.1f} ms" for name, value in figures.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description="Measure filter and prioritize with 20 lower clusters of 500 nodes and 50,000 pods.",
        epilog="Prints wall time and CPU time per pod, and the peak memory.",
    )
    parser.add_argument("agents", nargs="*", metavar="AGENT", help=f"default: {' '.join(INSTALLED)}")
    chosen_agents = parser.parse_args().agents or INSTALLED
    if unknown := set(chosen_agents) - set(INSTALLED):
        parser.error(f"unknown agents: {', '.join(sorted(unknown))}; installed are {', '.join(INSTALLED)}")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main([FIT, *(name for name in chosen_agents if name != FIT)], folder))

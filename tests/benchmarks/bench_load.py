"""Throughput, latency and cost of pods through a virtual node, compared with the same pods without it.

``python -m tests.benchmarks.bench_load --pods 2000 --rounds 3 --churn 600 --requests`` starts its own clusters,
alternates between the loads, and prints the figures, their ratios, the requests per pod, and which targets are met.
``--floor`` compares with the least that two clusters must do: the same pods, at the same time, on a kwok node of the
upper cluster and unbound in the lower cluster, which schedules them. All programs use tokens, as an installation does.
``--beside`` adds another virtual kubelet for the same lower cluster to the loads.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from controller_runtime.client.client import Client
from hack.sandbox import Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.process import Process
from tests.benchmarks import request_counts
from tests.benchmarks.delay import delayed
from tests.benchmarks.load import LoadResult, run_loads
from tests.benchmarks.stage import account_kubeconfig, client_of, progress, start_node, until_ready
from tests.benchmarks.usage import idle, usage

IDLE_SECONDS = 20.0
_CHURN_RATE = 20.0
"""Pods per second of ordinary churn: Kubernetes' own objective for a cluster."""
DIRECT = "kwok node"
SCHEDULED = "kwok, scheduled"
"""The pods on the same kwok nodes, bound by the scheduler, as the lower pods of a virtual node are."""
FLOOR = "both clusters"
OTHER = "other program"
VARIANTS: Mapping[str, Sequence[str]] = {"pod tokens": (), "node tokens": ("--identity-tokens=node",)}
"""Flags of the virtual nodes to measure, by title."""
Place = tuple[Client, str]
"""A cluster, and the node where the load's pods are bound; empty: the scheduler chooses."""

_CPU_MS, _CHURN_P99 = 6.0, 0.1
"""Most CPU ms per pod, most seconds that churn adds to p99."""
_RATES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    DIRECT: {"pod tokens": (0.38, 0.55), "node tokens": (0.45, 0.55)},
    FLOOR: {"pod tokens": (0.90, 0.85), "node tokens": (0.95, 0.85)},
}
"""Reference → variant → least pods/s and deletes/s as shares of the reference."""


@dataclass(frozen=True, slots=True)
class Round:
    """One load with its costs."""

    load: LoadResult
    cpu: Mapping[str, float]
    """CPU seconds by process, such as ``upper/kube-apiserver``."""
    requests: Mapping[str, dict[str, float]]
    """Requests per pod, by cluster."""


def show(title: str, result: LoadResult) -> None:
    """Print one load's figures."""
    print(
        f"{title:<28} {result.rate:7.1f} pods/s to Running   p50 {result.p50:6.2f} s   p99 {result.p99:6.2f} s   "
        f"{result.delete_rate:7.1f} deletes/s",
        flush=True,
    )


async def measure(
    sandbox: Sandbox,
    places: Sequence[Place],
    *,
    count: int,
    rate: float | None,
    processes: Sequence[Process],
) -> Round:
    """Run one load and return its figures, with the CPU time of the clusters and of further processes."""
    before, cpu = await request_counts.served_by(sandbox), _cpu_of(sandbox, processes)
    load = await run_loads(places, count=count, rate=rate)
    spent = _cpu_of(sandbox, processes)
    after = await request_counts.served_by(sandbox)
    return Round(
        load,
        {name: seconds - cpu[name] for name, seconds in spent.items()},
        {name: request_counts.per_pod(before[name], after[name], count) for name in after},
    )


def _cpu_of(sandbox: Sandbox, processes: Sequence[Process]) -> dict[str, float]:
    """Return the CPU seconds so far of every process of the sandbox, and of these."""
    found = {
        f"{cluster.name}/{process.name}": usage(process.pid).cpu
        for cluster in sandbox.clusters
        for process in cluster.processes
    }
    found |= {process.name: usage(process.pid).cpu for process in processes}
    if sandbox.etcd is not None:
        found["etcd"] = usage(sandbox.etcd.pid).cpu
    return found | {"benchmark": usage(os.getpid()).cpu}


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=1, help="times to run each load, alternating")
    parser.add_argument(
        "--rate", type=float, default=None, help="pods per second to create (as fast as possible)"
    )
    parser.add_argument(
        "--churn", type=int, default=0, help=f"then create so many pods at {_CHURN_RATE:g} pods/s"
    )
    parser.add_argument(
        "--delay", type=float, default=0.0, help="seconds that the lower apiserver's answers take longer"
    )
    parser.add_argument("--requests", action="store_true", help="print the requests per pod of both clusters")
    parser.add_argument("--skip-direct", action="store_true")
    parser.add_argument("--floor", action="store_true", help=f"add the load {FLOOR!r} and compare with it")
    parser.add_argument(
        "--beside",
        metavar="COMMAND",
        help="command of another virtual kubelet, with {node}, {upper} and {lower} for its Node's name and the kubeconfigs",
    )
    parser.add_argument("--log-level", default="warn")
    parser.add_argument("--flag", action="append", default=[], help="further flags of the virtual nodes")
    return parser.parse_args(arguments)


async def main(arguments: Sequence[str]) -> int:
    """Run the loads and print figures and ratios."""
    options = _parsed(arguments)
    upper_nodes = int(options.floor)
    async with Sandbox(lower=1, upper_kwok_nodes=upper_nodes, progress=progress) as sandbox:
        files = [await account_kubeconfig(cluster) for cluster in sandbox.clusters]
        upper, lower = [await client_of(*pair) for pair in zip(sandbox.clusters, files, strict=True)]
        async with lower, upper, contextlib.AsyncExitStack() as stack:
            upper_kubeconfig, lower_kubeconfig = files
            if options.delay:
                lower_kubeconfig = await stack.enter_async_context(
                    delayed(lower_kubeconfig, port=sandbox.lower[0].port, seconds=options.delay)
                )
            flags = [
                f"--kubeconfig={upper_kubeconfig}",
                f"--log-level={options.log_level}",
                *options.flag,
            ]
            processes = {
                title: await start_node(
                    sandbox, f"vn-{title.replace(' ', '-')}", lower_kubeconfig, *own, *flags
                )
                for title, own in VARIANTS.items()
            }
            if options.beside:
                processes[OTHER] = await _start_other(
                    sandbox, options.beside, upper=upper_kubeconfig, lower=lower_kubeconfig
                )
            for title, process in processes.items():
                share, rss = await idle(sandbox, process.pid, seconds=IDLE_SECONDS)
                print(f"{title}, idle: {share:.2%} CPU, {rss:.0f} MiB", flush=True)
            targets: dict[str, list[Place]] = {}
            if not options.skip_direct:
                targets |= {DIRECT: [(lower, "lower1-node-0")], SCHEDULED: [(lower, "")]}
            if options.floor:
                targets |= {FLOOR: [(upper, "upper-node-0"), (lower, "")]}
            targets |= {title: [(upper, process.name)] for title, process in processes.items()}
            churn = (options.churn, _CHURN_RATE)
            for rounds_of in ((options.pods, options.rate), churn):
                count, rate = rounds_of
                if not count:
                    continue
                found: dict[str, list[Round]] = {title: [] for title in targets}
                for _ in range(options.rounds):
                    for title, places in targets.items():
                        one = await measure(
                            sandbox, places, count=count, rate=rate, processes=[*processes.values()]
                        )
                        show(title, one.load)
                        found[title].append(one)
                _show_costs(found, processes, count)
                _show_targets(found, processes, is_churn=rounds_of is churn)
                if options.requests:
                    _show_requests(found)
            for title, process in processes.items():
                print(f"{title}: peak {usage(process.pid).peak_mib:.0f} MiB")
    return 0


async def _start_other(sandbox: Sandbox, command: str, *, upper: Path | str, lower: Path | str) -> Process:
    """Start another virtual kubelet and wait until its Node is Ready."""
    name = "other"
    argv = [part.format(node=name, upper=upper, lower=lower) for part in shlex.split(command)]
    process = await sandbox.start_process(name, argv, env={"VKUBELET_POD_IP": LOOPBACK, "KUBELET_PORT": "0"})
    await until_ready(sandbox.upper, name)
    return process


def _show_targets(
    found: Mapping[str, Sequence[Round]], processes: Mapping[str, Process], *, is_churn: bool
) -> None:
    """Print the medians of the ratios to the reference load of the same round, and of the process' CPU time."""
    reference = FLOOR if FLOOR in found else DIRECT
    for title, process in processes.items():
        rounds = found[title]
        cpu = statistics.median(one.cpu[process.name] / one.load.pods for one in rounds) * 1000
        rows = [("CPU ms per pod", cpu, _CPU_MS, cpu <= _CPU_MS)]
        pairs = [(one.load, other.load) for one, other in zip(rounds, found.get(reference, ()), strict=False)]
        if pairs and is_churn:
            p99 = statistics.median(one.p99 - other.p99 for one, other in pairs)
            rows.append(("p99 adds s", p99, _CHURN_P99, p99 <= _CHURN_P99))
        elif pairs:
            rate = statistics.median(one.rate / other.rate for one, other in pairs)
            deletes = statistics.median(one.delete_rate / other.delete_rate for one, other in pairs)
            least_rate, least_deletes = _RATES[reference].get(title, (0.0, 0.0))
            rows += [
                (f"pods/s of {reference}", rate, least_rate, rate >= least_rate),
                (f"deletes/s of {reference}", deletes, least_deletes, deletes >= least_deletes),
            ]
        whole = partial(_whole_cpu, processes=processes)
        for what, value, other in (
            ("pods/s", _rate, SCHEDULED),
            ("CPU", whole, SCHEDULED),
            ("CPU", whole, FLOOR),
        ):
            bases = found.get(other, ())
            ratios = [
                value(one, title) / value(base, other) for one, base in zip(rounds, bases, strict=False)
            ]
            if ratios:
                print(f"{title:<14}{f'{what} of {other}':<28}{statistics.median(ratios):6.2f}")
        for what, measured, target, is_met in rows:
            verdict = f"   target {target:g} {'met' if is_met else 'MISSED'}" if title in VARIANTS else ""
            print(f"{title:<14}{what:<28}{measured:6.2f}{verdict}")


def _rate(one: Round, _title: str) -> float:
    return one.load.rate


def _whole_cpu(one: Round, title: str, *, processes: Mapping[str, Process]) -> float:
    """Return the CPU seconds of all processes but the benchmark and the idle virtual nodes."""
    others = {process.name for other, process in processes.items() if other != title} | {"benchmark"}
    return sum(seconds for name, seconds in one.cpu.items() if name not in others)


def _show_costs(found: Mapping[str, Sequence[Round]], processes: Mapping[str, Process], count: int) -> None:
    """Print the medians of CPU milliseconds per pod, for a pod's whole life."""
    for title, rounds in found.items():
        own = {process.name for other, process in processes.items() if other != title}
        spent = {
            name: statistics.median(one.cpu[name] for one in rounds) / count * 1000
            for name in rounds[0].cpu
            if name not in own
        }
        parts = ", ".join(f"{name} {cost:.1f}" for name, cost in spent.items() if cost >= 0.1)
        print(f"{title}, CPU ms per pod: {parts}", flush=True)


def _show_requests(found: Mapping[str, Sequence[Round]]) -> None:
    """Print the requests per pod of each load's last round, by verb and resource."""
    columns = {}
    for title, rounds in found.items():
        for cluster, rows in rounds[-1].requests.items():
            if title not in {DIRECT, SCHEDULED, FLOOR}:
                columns[f"{cluster} {title}"[:19]] = rows
            elif title != FLOOR and cluster != "upper":
                columns[title[:19]] = rows
    totals = {title: {"all": sum(rows.values()), **rows} for title, rows in columns.items()}
    print("requests per pod, for its whole life")
    print(request_counts.table(totals), flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))

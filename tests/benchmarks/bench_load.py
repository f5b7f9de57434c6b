"""Throughput, latency and cost of pods through a virtual node, compared with the same pods on a kwok node.

``python -m tests.benchmarks.bench_load --pods 2000 --rounds 3 --churn 600 --requests`` starts its own clusters,
alternates between the loads, and prints the figures, their ratios to the load on a kwok node, the requests per pod, and
which targets are met.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller_runtime.client.client import Client
from hack.sandbox import Sandbox
from hack.sandbox.process import Process
from tests.benchmarks import request_counts
from tests.benchmarks.delay import delayed
from tests.benchmarks.load import LoadResult, run_load
from tests.benchmarks.stage import client_of, start_node
from tests.benchmarks.usage import idle, usage

IDLE_SECONDS = 20.0
_CHURN_RATE = 20.0
"""Pods per second of ordinary churn: Kubernetes' own objective for a cluster."""
DIRECT = "kwok node"
SCHEDULED = "kwok, scheduled"
"""The pods on the same kwok nodes, bound by the scheduler, as the lower pods of a virtual node are."""
VARIANTS: Mapping[str, Sequence[str]] = {"pod tokens": (), "node tokens": ("--identity-tokens=node",)}
"""Flags of the virtual nodes to measure, by title."""

TARGETS = {"pod tokens": 0.38, "node tokens": 0.45}
"""Least pods/s as a share of the direct load. The bound is 0.5, because two clusters share the machine."""
_DELETES, _CPU_MS, _CHURN_P99 = 0.55, 6.0, 0.1
"""Least deletes/s as a share of the direct load, most CPU ms per pod, most seconds that churn adds to p99."""


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
    client: Client,
    *,
    node: str,
    count: int,
    rate: float | None,
    processes: Sequence[Process],
) -> Round:
    """Run one load and return its figures, with the CPU time of the clusters and of further processes."""
    before, cpu = await request_counts.served_by(sandbox), _cpu_of(sandbox, processes)
    load = await run_load(client, node=node, count=count, rate=rate)
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
    parser.add_argument("--log-level", default="warn")
    parser.add_argument("--flag", action="append", default=[], help="further flags of the virtual nodes")
    return parser.parse_args(arguments)


async def main(arguments: Sequence[str]) -> int:
    """Run the loads and print figures and ratios."""
    options = _parsed(arguments)
    async with Sandbox(lower=1, progress=lambda line: print(f"# {line}", flush=True)) as sandbox:
        lower, upper = await client_of(sandbox.lower[0]), await client_of(sandbox.upper)
        async with lower, upper, contextlib.AsyncExitStack() as stack:
            lower_kubeconfig = sandbox.lower[0].kubeconfig
            if options.delay:
                lower_kubeconfig = await stack.enter_async_context(
                    delayed(lower_kubeconfig, port=sandbox.lower[0].port, seconds=options.delay)
                )
            flags = [f"--log-level={options.log_level}", *options.flag]
            processes = {
                title: await start_node(
                    sandbox, f"vn-{title.replace(' ', '-')}", lower_kubeconfig, *own, *flags
                )
                for title, own in VARIANTS.items()
            }
            for title, process in processes.items():
                share, rss = await idle(sandbox, process.pid, seconds=IDLE_SECONDS)
                print(f"{title}, idle: {share:.2%} CPU, {rss:.0f} MiB", flush=True)
            targets = (
                [] if options.skip_direct else [(DIRECT, lower, "lower1-node-0"), (SCHEDULED, lower, "")]
            )
            targets += [(title, upper, process.name) for title, process in processes.items()]
            churn = (options.churn, _CHURN_RATE)
            for rounds_of in ((options.pods, options.rate), churn):
                count, rate = rounds_of
                if not count:
                    continue
                found: dict[str, list[Round]] = {title: [] for title, _, _ in targets}
                for _ in range(options.rounds):
                    for title, client, node in targets:
                        one = await measure(
                            sandbox,
                            client,
                            node=node,
                            count=count,
                            rate=rate,
                            processes=[*processes.values()],
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


def _show_targets(
    found: Mapping[str, Sequence[Round]], processes: Mapping[str, Process], *, is_churn: bool
) -> None:
    """Print the medians of the ratios to the direct load of the same round, and of the process' CPU time."""
    for title, process in processes.items():
        rounds = found[title]
        cpu = statistics.median(one.cpu[process.name] / one.load.pods for one in rounds) * 1000
        rows = [("CPU ms per pod", cpu, _CPU_MS, cpu <= _CPU_MS)]
        if pairs := [
            (one.load, other.load) for one, other in zip(rounds, found.get(DIRECT, ()), strict=False)
        ]:
            rate = statistics.median(one.rate / other.rate for one, other in pairs)
            deletes = statistics.median(one.delete_rate / other.delete_rate for one, other in pairs)
            p99 = statistics.median(one.p99 - other.p99 for one, other in pairs)
            rows += (
                [("p99 adds s", p99, _CHURN_P99, p99 <= _CHURN_P99)]
                if is_churn
                else [
                    ("pods/s of direct", rate, TARGETS[title], rate >= TARGETS[title]),
                    ("deletes/s of direct", deletes, _DELETES, deletes >= _DELETES),
                ]
            )
            scheduled = statistics.median(
                one.load.rate / other.load.rate for one, other in zip(rounds, found[SCHEDULED], strict=True)
            )
            print(f"{title:<14}{'pods/s of scheduled':<22}{scheduled:6.2f}")
        for what, measured, target, is_met in rows:
            print(f"{title:<14}{what:<22}{measured:6.2f}   target {target:g} {'met' if is_met else 'MISSED'}")


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
            if title not in {DIRECT, SCHEDULED}:
                columns[f"{cluster} {title}"[:19]] = rows
            elif cluster != "upper":
                columns[title[:19]] = rows
    totals = {title: {"all": sum(rows.values()), **rows} for title, rows in columns.items()}
    print("requests per pod, for its whole life")
    print(request_counts.table(totals), flush=True)


if __name__ == "__main__":
    sys.exit(asyncio.run(main(sys.argv[1:])))

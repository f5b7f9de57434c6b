"""CPU time and memory of the daemon for its start, the complete lifetime of pods, and a restart, without control planes.

The API servers (``memory_server``) are in this process, so that only the daemon is measured, and a busy machine disturbs
less. With ``--against DIR``, the daemon of another checkout runs in turn, and the ratios of each round are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_many_pods import scrape
from tests.benchmarks.canned_pods import NAMESPACE
from tests.benchmarks.memory_installation import LIMIT, installation, pod
from tests.benchmarks.stage import until
from tests.benchmarks.usage import usage

_QUIET = 5.0
"""Seconds after a step in which the daemon's CPU time still counts."""


async def life(tree: Path, count: int, *, tokens: str) -> dict[str, Any]:
    """Start the daemon of a checkout, run pods, restart it, delete the pods; return CPU seconds, MiB and requests.

    ``startSeconds`` is the wall time from the start of the process to the Ready virtual node.

    Args:
        tree: the checkout.
        count: number of pods; all exist at the same time.
        tokens: ``pod`` or ``node``, as ``identities.tokens``.
    """
    async with installation(clusters=1) as at:
        upper, lower = at.upper.storage, at.lower[0].storage
        figures: dict[str, Any] = {"pods": count}
        settings = at.settings(identities={"tokens": tokens})
        async with at.daemon(tree, settings) as daemon:
            started = time.monotonic()
            await at.ready()
            figures |= {"startSeconds": time.monotonic() - started, "startCpu": usage(daemon.pid).cpu}
            await asyncio.sleep(_QUIET)
            begun, figures["emptyMiB"] = usage(daemon.pid).cpu, usage(daemon.pid).rss_mib
            for number in range(count):
                upper.create("pods", pod(number), namespace=NAMESPACE)
            await at.until(lambda: len(at.running) == count)
            await asyncio.sleep(_QUIET)
            figures |= {"runCpu": usage(daemon.pid).cpu - begun, "fullMiB": usage(daemon.pid).rss_mib}
        before = at.requests()
        async with at.daemon(tree, settings) as daemon:
            await until(lambda: _has_adopted(settings["metricsAddress"], count), seconds=LIMIT)
            figures["restartCpu"] = usage(daemon.pid).cpu
            await asyncio.sleep(_QUIET)
            writes = _writes(at.requests() - before)
            figures |= {"restartedMiB": usage(daemon.pid).rss_mib, "writes": writes}
            begun = usage(daemon.pid).cpu
            for key in list(upper.objects["pods"]):
                upper.delete("pods", key)
            await at.until(lambda: not upper.objects["pods"] and not lower.objects["pods"])
            await asyncio.sleep(_QUIET)
            figures["deleteCpu"] = usage(daemon.pid).cpu - begun
    figures["lifeMs"] = 1000 * (figures["runCpu"] + figures["deleteCpu"]) / count
    return figures


async def _has_adopted(metrics: str, count: int) -> bool:
    """Report whether the queue of pods has had so many keys and is empty. The answer costs CPU time, so it is asked rarely."""
    await asyncio.sleep(1.0)
    with contextlib.suppress(OSError):
        found = {
            one.name: one.value
            for one in await scrape(f"http://{metrics}/metrics")
            if one.labels.get("name") == "pods-lower-0"
        }
        done = found.get("workqueue_work_duration_seconds_count", 0)
        return done >= count and found.get("workqueue_depth") == 0
    return False


def _writes(requests: Counter[str]) -> dict[str, int]:
    """Return the writes, without those of Leases and of Events that waited for the pace of Normal events."""
    return {
        row: number
        for row, number in requests.items()
        if " GET " not in row and not row.endswith((" leases", " events"))
    }


async def _compare(trees: Sequence[Path], *, pods: int, rounds: int, tokens: str) -> None:
    """Print the figures of each checkout in turn, and the ratios of the first two."""
    results: dict[Path, list[dict[str, Any]]] = {tree: [] for tree in trees}
    for _ in range(rounds):
        for tree, rows in results.items():
            rows.append(await life(tree, pods, tokens=tokens))
            print(json.dumps({"tree": str(tree), **rows[-1]}), flush=True)
    if len(trees) > 1:
        ours, others = (results[tree] for tree in trees[:2])
        for figure in (
            "startSeconds",
            "startCpu",
            "emptyMiB",
            "lifeMs",
            "fullMiB",
            "restartCpu",
            "restartedMiB",
        ):
            ratios = [one[figure] / other[figure] for one, other in zip(ours, others, strict=True)]
            print(f"{figure}: {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")


def main(arguments: Sequence[str]) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tokens", choices=("pod", "node"), default="pod")
    parser.add_argument("--against", type=Path, help="another checkout")
    options = parser.parse_args(arguments)
    trees = [Path.cwd(), *([options.against] if options.against else [])]
    asyncio.run(_compare(trees, pods=options.pods, rounds=options.rounds, tokens=options.tokens))


if __name__ == "__main__":
    main(sys.argv[1:])

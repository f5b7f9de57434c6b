"""Churn of 10 pods/s with a fault every 20 s: kill, partition, 410, slow responses.

``python -m tests.benchmarks.bench_soak --minutes 60`` (``make soak MINUTES=60``) prints a summary and exits with 1 on
a violation. Two virtual nodes of one lower cluster get pods in turn. Kills hit only one of their processes, so
that the memory of the other one can be compared. Both reach the API servers through ``FaultProxy``.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import random
import secrets
import shutil
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.errors import NotFound
from controller_runtime.objects import Object
from hack.sandbox.process import Process
from tests.background import working
from tests.benchmarks.fault_proxy import FaultProxy
from tests.benchmarks.load import PodWatch, make_namespace, pod
from tests.benchmarks.soak_verdict import Observed, verdict
from tests.benchmarks.stage import Stage, progress, stage, start_node
from tests.benchmarks.usage import percentile, usage

RATE, LIFE = 10.0, 15.0
"""Pods per second, and seconds from a pod's creation to its deletion."""
EVERY, LASTS, AFTER = 20.0, 5.0, 7.0
"""Seconds between faults, of a fault, and after it until pods count as unaffected."""
WARM_UP = 600.0
NAMESPACE, STEADY, KILLED = "soak", "vn-steady", "vn-killed"
_SETTLE = 180.0
"""Seconds after the last fault in which everything must be in order again."""
_OWNED = resources.PODS, resources.SECRETS, resources.CONFIG_MAPS


async def measure(*, quick: bool, seed: int) -> dict[str, Any]:
    """Return targets and samples of a soak of an hour."""
    return await soak(150.0 if quick else 3600.0, seed=seed, warm_up=20.0 if quick else WARM_UP)


async def soak(
    seconds: float, *, seed: int, warm_up: float = WARM_UP, evidence: Path | None = None
) -> dict[str, Any]:
    """Run the churn with faults; return targets and samples.

    Args:
        seconds: duration, without start and end.
        seed: order of the faults.
        warm_up: seconds until memory is compared.
        evidence: folder for logs, and for the pods of both clusters at the end; None: not kept.
    """
    log_level = f"--log-level={'error' if evidence is None else 'debug'}"
    async with stage(kwok_nodes=5) as at, AsyncExitStack() as stack:
        proxies = [await stack.enter_async_context(FaultProxy(one)) for one in at.sandbox.clusters]
        kubeconfigs = [proxy.kubeconfig() for proxy in proxies]
        processes = {
            name: await start_node(
                at.sandbox, name, kubeconfigs[1], f"--kubeconfig={kubeconfigs[0]}", log_level
            )
            for name in (STEADY, KILLED)
        }
        await make_namespace(at.upper, NAMESPACE)
        run = _Soak(at, processes, proxies, random.Random(seed))
        found = await run.run(seconds, warm_up)
        if evidence is not None:
            await _keep(evidence, at, list(processes.values()))
        return found


async def _keep(evidence: Path, at: Stage, processes: Sequence[Process]) -> None:
    """Copy logs and pods to a folder."""
    evidence.mkdir(parents=True, exist_ok=True)
    for process in processes:
        shutil.copy(process.log, evidence)
    for cluster in at.sandbox.clusters:
        pods = await cluster.kubectl("get", "pods", "--all-namespaces", "--output=json")
        (evidence / f"{cluster.name}-pods.json").write_text(pods.stdout, encoding="utf-8")


class _Soak:
    """One run."""

    def __init__(
        self, at: Stage, processes: dict[str, Process], proxies: Sequence[FaultProxy], chance: random.Random
    ) -> None:
        self._upper, self._lower = at.upper, at.lower[0]
        self._processes, self._proxies, self._chance = processes, proxies, chance
        self._observed = Observed()
        self._sent: dict[str, float] = {}
        """Time of creation by pod name; of ``time.perf_counter``, as all times of this class."""
        self._live: deque[str] = deque()
        self._faults: list[tuple[float, str]] = []

    async def run(self, seconds: float, warm_up: float) -> dict[str, Any]:
        """Return targets and samples."""
        lower_uids: dict[str, set[str]] = {}

        def note(found: Object, _initial: object = None) -> None:
            if uid := found.labels.get(names.LABEL_UPPER_UID):
                lower_uids.setdefault(uid, set()).add(found.uid)

        below = Informer(self._lower, resources.PODS, namespace=NAMESPACE)
        below.add_handler(on_add=note)
        async with PodWatch(self._upper, namespace=NAMESPACE) as watch, working(below.run()):
            begun = time.perf_counter()
            tasks = [asyncio.create_task(one) for one in (self._churn(), self._fault(), self._sample(begun))]
            await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    await task  # raises what ended it
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for proxy in self._proxies:
                proxy.end()
            if not self._processes[KILLED].running:
                await self._processes[KILLED].start()
            await self._end(watch)
        observed = self._observed
        observed.created = len(self._sent)
        observed.doubled = sorted(uid for uid, found in lower_uids.items() if len(found) > 1)
        observed.latencies = [
            (self._sent[name] - begun, watch.ran[name] - self._sent[name])
            for name in self._sent
            if name in watch.ran and not self._is_affected(self._sent[name])
        ]
        rows = verdict(observed, warm_up=warm_up, end=seconds, wanted=int(RATE * seconds))
        return {
            "minutes": seconds / 60,
            "created": observed.created,
            "started": len(watch.ran),
            "faults": [[at - begun, what] for at, what in self._faults],
            "memory": observed.memory,
            "latencies": _by_minute(observed.latencies),
            "wrong": [*observed.lost, *observed.doubled, *observed.leaked],
            "targets": rows,
        }

    async def _churn(self) -> None:
        begun, prefix = time.perf_counter(), secrets.token_hex(2)
        nodes = itertools.cycle(self._processes)
        for number in itertools.count():
            await asyncio.sleep(max(0.0, begun + number / RATE - time.perf_counter()))
            name = f"soak-{prefix}-{number:06d}"
            self._sent[name] = time.perf_counter()
            self._live.append(name)
            body = pod(name, namespace=NAMESPACE, node=next(nodes))
            await self._upper.create(resources.PODS, body, namespace=NAMESPACE)
            while self._live and self._sent[self._live[0]] + LIFE < time.perf_counter():
                # Forgotten only then, because the soak may end during the request.
                await self._upper.delete(resources.PODS, self._live[0], namespace=NAMESPACE)
                self._live.popleft()

    async def _fault(self) -> None:
        """Begin a fault every 20 s: all kinds in random order, then all again."""
        kinds: list[tuple[str, FaultProxy | None]] = [("kill", None)]
        kinds += [(kind, proxy) for kind in ("partition", "expired", "slow") for proxy in self._proxies]
        while True:
            for kind, proxy in self._chance.sample(kinds, len(kinds)):
                await asyncio.sleep(EVERY - LASTS)
                self._faults.append((time.perf_counter(), kind))
                if proxy is None:
                    await self._processes[KILLED].kill()
                    await asyncio.sleep(1)
                    await self._processes[KILLED].start()
                    await asyncio.sleep(LASTS - 1)
                else:
                    await proxy.begin(kind)  # type: ignore[arg-type]
                    await asyncio.sleep(LASTS)
                    proxy.end()

    async def _sample(self, begun: float) -> None:
        process = self._processes[STEADY]
        while True:
            process.check()
            self._observed.memory.append((time.perf_counter() - begun, usage(process.pid).rss_mib))
            await asyncio.sleep(5)

    async def _end(self, watch: PodWatch) -> None:
        """Wait until all pods run, delete them, and wait until nothing is left of them."""

        async def waiting() -> list[str]:
            return [name for name in self._live if name not in watch.ran]

        self._observed.lost = [*watch.failed, *await _until_empty(waiting)]
        for name in self._live:
            with suppress(NotFound):
                await self._upper.delete(resources.PODS, name, namespace=NAMESPACE)

        async def left() -> list[str]:
            upper = await self._upper.list(resources.PODS, namespace=NAMESPACE)
            found = [f"upper Pod {one.name} of {(one.spec or {}).get('nodeName')}" for one in upper.items]
            for resource in _OWNED:
                lower = await self._lower.list(
                    resource, namespace=NAMESPACE, label_selector=names.LABEL_UPPER_CLUSTER
                )
                found += [f"lower {resource.kind} {one.name}" for one in lower.items]
            return found

        self._observed.leaked = await _until_empty(left)

    def _is_affected(self, created: float) -> bool:
        """Report whether a pod was created at a time at which a fault may delay it."""
        return any(at - 1 <= created <= at + LASTS + AFTER for at, _ in self._faults)


async def _until_empty(read: Any) -> list[str]:
    """Return what still remains when nothing does, or when the time to settle has passed."""
    deadline = time.monotonic() + _SETTLE
    while True:
        remaining: list[str] = await read()
        if not remaining or time.monotonic() > deadline:
            return remaining
        await asyncio.sleep(1)


def _by_minute(latencies: Sequence[tuple[float, float]]) -> list[list[float]]:
    """Return minute, median, 99th percentile and number of pods."""
    minutes: dict[int, list[float]] = {}
    for at, seconds in latencies:
        minutes.setdefault(int(at // 60), []).append(seconds)
    return [
        [minute, percentile(all_, 0.5), percentile(all_, 0.99), len(all_)]
        for minute, all_ in sorted(minutes.items())
    ]


def main(arguments: Sequence[str]) -> int:
    """Run, print the conditions, and return 1 if one is not met."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument(
        "--warm-up", type=float, default=WARM_UP / 60, help="minutes until memory is compared"
    )
    parser.add_argument("--evidence", type=Path, help="folder for debug logs and the pods of both clusters")
    options = parser.parse_args(arguments)
    found = asyncio.run(
        soak(
            options.minutes * 60,
            seed=options.seed,
            warm_up=options.warm_up * 60,
            evidence=options.evidence,
        )
    )
    progress(f"{found['created']} pods created, {found['started']} started, {len(found['faults'])} faults")
    for row in found["targets"]:
        mark = "ok" if row["isMet"] else "VIOLATED"
        print(f"{row['what']:<46}{row['wanted']:<12}{row['measured']:<48}{mark}")
    for one in found["wrong"]:
        print(one)
    return 0 if all(row["isMet"] for row in found["targets"]) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

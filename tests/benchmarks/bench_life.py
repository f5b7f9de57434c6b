"""CPU time and memory of the daemon for its start, the complete lifetime of pods, and a restart, without control planes.

The API servers (``memory_server``) are in this process, so that only the daemon is measured, and a busy machine disturbs
less. With ``--against DIR``, the daemon of another checkout runs in turn, and the ratios of each round are printed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import contextlib
import json
import os
import signal
import statistics
import sys
import tempfile
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from aiohttp import web

from clusterset.model.pod.conditions import is_true
from controller_runtime.tls import key_pairs
from hack.sandbox.nodes.kwok import kwok_node
from hack.sandbox.ports import free_ports
from tests.background import working
from tests.benchmarks.bench_many_pods import scrape
from tests.benchmarks.memory_server import KwokNodes, MemoryServer
from tests.benchmarks.stage import until
from tests.benchmarks.usage import usage
from tests.kubeconfigs import whole, write
from tests.serving import served, server_context

_NODE, _NAMESPACE, _HOST, _LIMIT = "vn-0", "load", "127.0.0.1", 900.0
_NAMES = ("upper", "lower-0")
_QUIET = 5.0
"""Seconds after a step in which the daemon's CPU time still counts."""


async def life(tree: Path, count: int, *, tokens: str) -> dict[str, Any]:
    """Start the daemon of a checkout, run pods, restart it, delete the pods; return CPU seconds, MiB and requests.

    Args:
        tree: the checkout.
        count: number of pods; all exist at the same time.
        tokens: ``pod`` or ``node``, as ``identities.tokens``.
    """
    pair = key_pairs.self_signed("localhost", hosts=[_HOST])
    servers = {name: MemoryServer(name) for name in _NAMES}
    upper, lower = (servers[name].storage for name in _NAMES)
    _fill(servers, pair.certificate.decode())

    async def answer(request: web.Request) -> web.StreamResponse:
        return await servers[request.match_info["cluster"]].answer(request)

    def running() -> int:
        return sum(pod["status"].get("phase") == "Running" for pod in upper.objects["pods"].values())

    route = web.route("*", "/{cluster}/{path:.*}", answer)
    async with (
        served(route, tls=server_context(pair), shutdown_timeout=0.1, handler_cancellation=True) as port,
        working(KwokNodes(servers["lower-0"]).run()),
    ):
        with tempfile.TemporaryDirectory() as folder:
            metrics = f"{_HOST}:{free_ports(1)[0]}"
            file = _configuration(Path(folder), port, pair.certificate, tokens=tokens, metrics=metrics)
            found: dict[str, Any] = {"pods": count}
            async with _daemon(tree, file) as daemon:
                await _until(lambda: is_true((upper.find("nodes", _NODE) or {}).get("status"), "Ready"))
                found |= {"startCpu": usage(daemon.pid).cpu}
                await asyncio.sleep(_QUIET)
                begun, found["emptyMiB"] = usage(daemon.pid).cpu, usage(daemon.pid).rss_mib
                for number in range(count):
                    upper.create("pods", pod(number), namespace=_NAMESPACE)
                await _until(lambda: running() == count)
                await asyncio.sleep(_QUIET)
                found |= {"runCpu": usage(daemon.pid).cpu - begun, "fullMiB": usage(daemon.pid).rss_mib}
            before = {name: server.requests.copy() for name, server in servers.items()}
            async with _daemon(tree, file) as daemon:
                await until(lambda: _has_adopted(metrics, count), seconds=_LIMIT)
                found["restartCpu"] = usage(daemon.pid).cpu
                await asyncio.sleep(_QUIET)
                found |= {"restartedMiB": usage(daemon.pid).rss_mib, "writes": _writes(servers, before)}
                begun = usage(daemon.pid).cpu
                for key in list(upper.objects["pods"]):
                    upper.delete("pods", key)
                await _until(lambda: not upper.objects["pods"] and not lower.objects["pods"])
                await asyncio.sleep(_QUIET)
                found["deleteCpu"] = usage(daemon.pid).cpu - begun
    found["lifeMs"] = 1000 * (found["runCpu"] + found["deleteCpu"]) / count
    return found


def pod(number: int) -> dict[str, Any]:
    """Return a pod as the controller of a ReplicaSet creates it and the API server completes it."""
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    volume = f"kube-api-access-{number:05d}"
    mount = {"name": volume, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-7d4b9c6f5-{number:05d}",
            "generateName": "web-7d4b9c6f5-",
            "namespace": _NAMESPACE,
            "labels": {"app": "web", "pod-template-hash": "7d4b9c6f5"},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-7d4b9c6f5", "uid": "rs-1", "controller": True}
            ],
        },
        "spec": {
            "nodeName": _NODE, "serviceAccountName": "default", "restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
            "schedulerName": "default-scheduler", "securityContext": {}, "enableServiceLinks": True, "priority": 0,
            "tolerations": [{"operator": "Exists"}],
            "containers": [
                {"name": "main", "image": "registry.k8s.io/pause:3.10", "imagePullPolicy": "IfNotPresent",
                 "resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}, "volumeMounts": [mount],
                 "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File"}
            ],
            "volumes": [{"name": volume, "projected": {"defaultMode": 420, "sources": sources}}],
        },
    }  # fmt: skip


def _fill(servers: dict[str, MemoryServer], ca: str) -> None:
    """Store what exists in both clusters before the daemon starts."""
    upper, lower = (servers[name].storage for name in _NAMES)
    for namespace in (_NAMESPACE, "kube-node-lease"):
        upper.put("namespaces", {"metadata": {"name": namespace}, "status": {"phase": "Active"}})
    metadata = {"namespace": _NAMESPACE}
    upper.put("configmaps", {"metadata": {"name": "kube-root-ca.crt", **metadata}, "data": {"ca.crt": ca}})
    upper.put("serviceaccounts", {"metadata": {"name": "default", **metadata}})
    node = kwok_node("node-0", pods=100_000)
    node["status"] |= {
        "conditions": [{"type": "Ready", "status": "True"}],
        "nodeInfo": {"kubeletVersion": "v1.34.4"},
    }
    lower.put("nodes", node)


def _configuration(folder: Path, port: int, ca: bytes, *, tokens: str, metrics: str) -> Path:
    """Write the configuration and the kubeconfigs; return its path."""
    for name in _NAMES:
        cluster = {
            "server": f"https://{_HOST}:{port}/{name}",
            "certificate-authority-data": base64.b64encode(ca).decode(),
        }
        write(folder / name, whole(cluster=cluster, user={"token": "t"}))
    document = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "kubeconfig": str(folder / "upper"),
        "kubelet": {"address": _HOST, "port": 0},
        "metricsAddress": metrics,
        "identities": {"tokens": tokens},
        "clusters": [
            {
                "name": "lower1",
                "kubeconfig": str(folder / "lower-0"),
                "nodeName": _NODE,
                "namespaces": {"adopt": ["*"]},
                "cacheBytes": 2**30,
            }
        ],
    }
    file = folder / "configuration.json"
    file.write_text(json.dumps(document), encoding="utf-8")
    return file


@contextlib.asynccontextmanager
async def _daemon(tree: Path, file: Path) -> AsyncIterator[Process]:
    """Run the daemon of a checkout until the block ends. Its bytecode is cached before, as in the image."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(tree),
        "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / f"life{tree}"),
    }
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    run = partial(asyncio.create_subprocess_exec, sys.executable, env=environment, cwd=tree)
    await (await run("-c", "import virtual_node.app")).wait()
    process = await run("-m", "virtual_node", "--config", str(file), "--log-level=error")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        await process.wait()


async def _until(holds: Callable[[], bool]) -> None:
    async def check() -> bool:
        return holds()

    await until(check, seconds=_LIMIT)


async def _has_adopted(metrics: str, count: int) -> bool:
    """Report whether the queue of pods has had so many keys and is empty. The answer costs CPU time, so it is asked rarely."""
    await asyncio.sleep(1.0)
    with contextlib.suppress(OSError):
        found = {
            one.name: one.value
            for one in await scrape(f"http://{metrics}/metrics")
            if one.labels.get("name") == "pods-lower1"
        }
        done = found.get("workqueue_work_duration_seconds_count", 0)
        return done >= count and found.get("workqueue_depth") == 0
    return False


def _writes(servers: dict[str, MemoryServer], before: Any) -> dict[str, int]:
    """Return the writes since then, without those of Leases and of Events that waited for the pace of Normal events."""
    return {
        f"{name} {row}": number
        for name, server in servers.items()
        for row, number in (server.requests - before[name]).items()
        if not row.startswith("GET ") and not row.endswith((" leases", " events"))
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
        for figure in ("startCpu", "emptyMiB", "lifeMs", "fullMiB", "restartCpu", "restartedMiB"):
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

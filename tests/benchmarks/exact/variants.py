"""The schedulers that are compared. All of them bind the same pods to the same virtual nodes."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hack.sandbox import Sandbox
from hack.sandbox.api import wait_healthy
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.components.scheduling import start_multi_scheduler, write_configuration
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from multi_scheduler.print_configuration import scheduler_configuration
from tests.benchmarks.exact.pods import NAMESPACE

SETTINGS = {"namespaces": {"adopt": [NAMESPACE]}, "policy": {"hostPorts": True}}
"""Settings of each lower cluster. Its namespace exists already, because the lower schedulers are asked there, too."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A stock scheduler of the upper cluster, with or without an extender."""

    name: str
    extender: str = "fit"
    """``fit``, ``any-node``, or empty: none."""
    binds: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the agent ``fit``."""


VARIANTS = {
    "a": Variant("fit (default)"),
    "b": Variant("fit, passNode: Prefer", settings={"passNode": "Prefer"}),
    "c": Variant("fit, passNode: false", settings={"passNode": False}),
    "d": Variant("fit, without --bind", binds=False),
    "e": Variant("kube-scheduler alone", extender=""),
    "f": Variant("one fitting lower node", extender="any-node"),
}
"""By the letter that names of pods begin with."""


@contextlib.asynccontextmanager
async def scheduling(sandbox: Sandbox, variant: Variant) -> AsyncIterator[None]:
    """Let a variant schedule the upper pods inside the block."""
    clusters = {cluster.name: SETTINGS for cluster in sandbox.lower}
    process: Process | None = None
    if variant.extender == "fit":
        agents = [{"name": "fit", "weight": 1, "config": dict(variant.settings)}]
        process = await start_multi_scheduler(
            sandbox, bind=variant.binds, clusters=clusters, settings={"agents": agents}
        )
    elif variant.extender:
        file = write_configuration(sandbox, "any-node.json", clusters)
        (port,) = free_ports(1)
        program = [sys.executable, "-m", "tests.benchmarks.exact.any_node"]
        argv = [*program, str(file), str(sandbox.upper.kubeconfig), str(port)]
        process = await sandbox.start_process("any-node", argv)
        url = f"http://{LOOPBACK}:{port}"
        await wait_healthy(process, f"{url}/readyz")
        whole = scheduler_configuration(url, bind=False)
        whole["extenders"][0].pop("preemptVerb")
        await sandbox.upper.reconfigure_scheduler(whole)
    else:
        plain = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
        }
        await sandbox.upper.reconfigure_scheduler(plain)
    try:
        yield
        if process is not None:
            process.check()
    finally:
        if process is not None:
            await process.stop()
            sandbox.processes.remove(process)

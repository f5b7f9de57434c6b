"""The scheduling components in the sandbox: webhook, descheduler, annotator, stock scheduler with multi-scheduler."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hack.sandbox.api import wait_healthy
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.errors import SandboxError
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from hack.sandbox.sandbox import Sandbox
from multi_scheduler.print_configuration import scheduler_configuration

CLIENT_SECRET = "extender-client"  # noqa: S105 - its name
"""Secret in kube-system with the scheduler's client certificate; the multi-scheduler creates it with ``tls``."""
_MULTI_SCHEDULER = "multi-scheduler.yaml"
"""File of the multi-scheduler's configuration, in the sandbox's folder."""
_READY_SECONDS = 150
_KEYS = ("ca.crt", "tls.crt", "tls.key")
_OWN_TLS = ("--secret-name=extender", f"--client-secret-name={CLIENT_SECRET}", f"--hosts={LOOPBACK}")


async def start_webhook(sandbox: Sandbox, *flags: str) -> Process:
    """Run the webhook and wait until labelled pods are mutated."""
    (port,) = free_ports(1)
    process = await sandbox.start_process(
        "webhook",
        [
            sys.executable, "-m", "webhook", f"--kubeconfig={sandbox.upper.kubeconfig}",
            f"--address={LOOPBACK}", f"--port={port}", "--register", f"--url=https://{LOOPBACK}:{port}", *flags,
        ],
    )  # fmt: skip
    await _until_pods(sandbox, process, mutated=True)
    return process


async def stop_webhook(sandbox: Sandbox, process: Process) -> None:
    """Stop the webhook, delete its registration, and wait until the API server no longer calls it.

    In this order, because a running webhook would register again.
    """
    await process.stop()
    kinds = "mutatingwebhookconfiguration,validatingwebhookconfiguration"
    await sandbox.upper.kubectl("delete", kinds, "virtual-node-webhook", "--ignore-not-found")
    await _until_pods(sandbox, process, mutated=False)


async def _until_pods(sandbox: Sandbox, process: Process, *, mutated: bool) -> None:
    """Wait until the webhook changes labelled pods, or no longer does, by dry runs that create no pod."""
    probe = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "probe", "namespace": "default", "labels": {"virtual-pod": "true"}},
        "spec": {"containers": [{"name": "c", "image": "busybox"}]},
    }
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _READY_SECONDS
    while loop.time() < deadline:
        if mutated:
            process.check()
        with contextlib.suppress(SandboxError):  # the webhook may not serve yet, or no longer
            created = await sandbox.upper.api.create("/api/v1/namespaces/default/pods", probe, dry_run=True)
            if ("virtual-kubelet.io/provider" in json.dumps(created)) == mutated:
                return
        await asyncio.sleep(0.2)
    raise SandboxError(
        f"the webhook {'does not mutate' if mutated else 'still mutates'} pods: "
        f"{process.last_line()} (log: {process.log})"
    )


async def start_descheduler(sandbox: Sandbox, *flags: str) -> Process:
    """Run the descheduler."""
    return await sandbox.start_process(
        "descheduler",
        [sys.executable, "-m", "descheduler", f"--kubeconfig={sandbox.upper.kubeconfig}", *flags],
    )


def write_configuration(
    sandbox: Sandbox,
    name: str,
    clusters: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Path:
    """Write a configuration with all lower clusters, arguments as for ``start_multi_scheduler``; return the file's path."""
    file = sandbox.directory / name
    configuration = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "ClusterSetConfiguration",
        "clusters": [
            {
                "name": cluster.name,
                "kubeconfig": str(cluster.kubeconfig),
                "nodes": [{"name": f"vn-{cluster.name}"}],
                **(clusters or {}).get(cluster.name, {}),
            }
            for cluster in sandbox.lower
        ],
        "agents": [{"name": "fit", "weight": 1}],
        **(settings or {}),
    }
    file.write_text(json.dumps(configuration, indent=1), encoding="utf-8")
    return file


async def start_annotator(sandbox: Sandbox, *flags: str, name: str = "annotator") -> Process:
    """Run the node annotator, by default with the configuration of the sandbox's multi-scheduler."""
    return await sandbox.start_process(
        name,
        [
            sys.executable, "-m", "multi_scheduler.annotator", f"--kubeconfig={sandbox.upper.kubeconfig}",
            f"--config={sandbox.directory / _MULTI_SCHEDULER}", "--leader-elect=false", *flags,
        ],
    )  # fmt: skip


async def start_multi_scheduler(
    sandbox: Sandbox,
    *flags: str,
    bind: bool = True,
    tls: bool = False,
    clusters: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Mapping[str, Any] | None = None,
    extenders: Sequence[Mapping[str, Any]] | None = None,
) -> Process:
    """Run the multi-scheduler for all lower clusters, and the upper cluster's scheduler with it.

    Args:
        sandbox: the clusters.
        flags: further flags of the multi-scheduler.
        bind: whether the extender also binds pods, which passes reserved lower nodes on.
        tls: whether scheduler and extender authenticate with certificates that the multi-scheduler creates.
        clusters: further configuration of lower clusters, by their names, such as their policies.
        settings: further configuration, such as agents.
        extenders: the scheduler's, without ``urlPrefix``, for paths of kube-safe-scheduler; None: one for all agents.
    """
    file = write_configuration(sandbox, _MULTI_SCHEDULER, clusters, settings)
    (port,) = free_ports(1)
    process = await sandbox.start_process(
        "multi-scheduler",
        [
            sys.executable, "-m", "multi_scheduler", f"--config={file}",
            f"--kubeconfig={sandbox.upper.kubeconfig}", f"--address={LOOPBACK}", f"--port={port}",
            *(["--bind"] if bind else []), *(_OWN_TLS if tls else []), *flags,
        ],
    )  # fmt: skip
    url = f"{'https' if tls else 'http'}://{LOOPBACK}:{port}"
    await wait_healthy(process, f"{url}/readyz")
    if tls:
        await _write_client_files(sandbox)
    ca, certificate, key = (str(sandbox.directory / f"extender-{key}") if tls else "" for key in _KEYS)
    whole = scheduler_configuration(url, bind=bind, ca_file=ca, cert_file=certificate, key_file=key)
    if extenders is not None:
        whole["extenders"] = [{"urlPrefix": f"{url}/scheduler", **one} for one in extenders]
    await sandbox.upper.reconfigure_scheduler(whole)
    return process


async def _write_client_files(sandbox: Sandbox) -> None:
    """Write the scheduler's credentials for the extender to files."""
    done = await sandbox.upper.kubectl("-n", "kube-system", "get", "secret", CLIENT_SECRET, "-o", "json")
    for key in _KEYS:
        file = sandbox.directory / f"extender-{key}"
        file.touch(mode=0o600)
        file.write_bytes(base64.b64decode(json.loads(done.stdout)["data"][key]))

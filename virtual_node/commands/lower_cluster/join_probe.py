"""Runs a pod briefly on a new virtual node, as proof that pods run there."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.client.reads import find
from controller_runtime.errors import ConfigError, NotFound
from virtual_node.commands.common.reader import Reader
from virtual_node.commands.diagnose import read_pod
from virtual_node.commands.diagnose.verdict import diagnose
from virtual_node.commands.lower_cluster.join_parts import marked, say
from virtual_node.config import program

_NAME = "probe"
_POLL = 0.5
_REMOVAL = 60.0
"""Seconds to wait until the namespace is gone in both clusters."""


def pod(node: str, image: str) -> dict[str, Any]:
    """Return the probe pod, which kube-scheduler can place only on this node.

    The restricted Pod Security standard admits it.
    """
    nothing = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": _NAME},
        "spec": {
            "nodeSelector": {names.LABEL_HOSTNAME: node, names.LABEL_NODE_TYPE: names.NODE_TYPE_VIRTUAL},
            "tolerations": [{"key": names.TAINT_PROVIDER, "operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 65535,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [{"name": _NAME, "image": image, "securityContext": nothing}],
        },
    }


async def run(upper: Client, lower: Client, node: str, options: argparse.Namespace) -> None:
    """Run a pod on a virtual node in a new namespace, then remove both.

    Args:
        upper: client of the upper cluster.
        lower: client of the lower cluster.
        node: the virtual node.
        options: ``probe_image``, ``timeout`` and ``request_timeout`` of the command line.

    Raises:
        ConfigError: the pod does not run in time; the message has the verdict of ``diagnose``.
    """
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "virtual-node-probe-"}}
    namespace = str((await upper.create(resources.NAMESPACES, marked(space)))["metadata"]["name"])
    loop = asyncio.get_running_loop()
    started = loop.time()
    try:
        while True:
            found = await find(upper, resources.PODS, _NAME, namespace=namespace)
            if found is None and await find(
                upper, resources.SERVICE_ACCOUNTS, "default", namespace=namespace
            ):
                # Admission refuses a pod before its namespace has the default ServiceAccount.
                found = await upper.create(
                    resources.PODS, pod(node, options.probe_image), namespace=namespace
                )
            if ((found or {}).get("status") or {}).get("phase") in {"Running", "Succeeded"}:
                break
            if loop.time() > started + options.timeout:
                raise ConfigError(await _why(upper, found, node, options))
            await asyncio.sleep(_POLL)
        seconds = loop.time() - started
    finally:
        await _remove(upper, lower, namespace)
    say("probe", f"a pod ran on {node} after {seconds:.0f} s, and is removed")


async def _why(upper: Client, found: dict[str, Any] | None, node: str, options: argparse.Namespace) -> str:
    if found is None:
        return (
            "the upper cluster made no ServiceAccount in a new namespace: does kube-controller-manager run?"
        )
    facts = await read_pod.gather(Reader(upper), found, lower="", timeout=options.request_timeout)
    verdict = diagnose(facts)
    lines = [f"virtual node {node} is Ready, but a pod does not run on it after {options.timeout:.0f} s:"]
    lines += [" → ".join((one.title, *one.next_steps)) for one in verdict]
    lines.append(f"Then run the command again; '{program.name('doctor')}' looks at the installation.")
    return " ".join(lines)


async def _remove(upper: Client, lower: Client, namespace: str) -> None:
    """Delete the upper namespace, and wait until the virtual node has also removed the lower one."""
    with contextlib.suppress(NotFound):
        await upper.delete(resources.NAMESPACES, namespace)
    deadline = asyncio.get_running_loop().time() + _REMOVAL
    while asyncio.get_running_loop().time() < deadline:
        left = [await find(one, resources.NAMESPACES, namespace) for one in (upper, lower)]
        if left == [None, None]:
            return
        await asyncio.sleep(_POLL)
    say("probe", f"namespace {namespace} is still being deleted")

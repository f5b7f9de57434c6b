"""Pods that wait in the lower cluster: the upper pod and ``diagnose`` name what they wait for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.commands.test_commands import command
from tests.clusters.virtual_nodes import pod
from tests.field.admission import WEBHOOK, admission_webhook
from tests.field.test_lower_controllers import simulated
from tests.waiting import becomes, create, get, make_namespace, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
FINALIZER = "example.com/backup"
GATE = "kueue.x-k8s.io/admission"


def real(name: str) -> dict[str, Any]:
    """Return a pod that ends at once when it is deleted. Simulated nodes remove finalizers."""
    return pod(name, "exec sleep 3600", terminationGracePeriodSeconds=1)


async def _messages(cluster: Cluster, namespace: str, reason: str) -> list[str]:
    events = (await get(cluster, namespace, "events", fields=f"reason={reason}"))["items"]
    return [one["message"] for one in events]


async def _hold(cluster: Cluster, namespace: str, name: str, *finalizers: str) -> None:
    """Set the finalizers of a pod."""
    patch = json.dumps({"metadata": {"finalizers": list(finalizers)}})
    await cluster.kubectl("-n", namespace, "patch", "pod", name, "--type=merge", "-p", patch)


async def _named(cluster: Cluster, namespace: str, reason: str, *words: str) -> None:
    """Wait for an event whose message has all words."""

    async def named() -> bool:
        messages = await _messages(cluster, namespace, reason)
        return any(all(word in text for word in words) for text in messages)

    await becomes(named, True, within=60, what=f"an event {reason} names {words}")


async def _diagnosed(cluster: Cluster, key: str, *words: str) -> str:
    """Check that ``diagnose`` names a fault with all words; return its output."""
    code, out = await command(cluster, "diagnose", "pod", key)
    assert code == 1
    assert all(word in out for word in words), out
    return out


async def _is_fault(cluster: Cluster, kind: str, subject: str, word: str) -> None:
    """Wait until ``status`` reports a fault of a pod, and check that ``doctor`` names it, too."""

    async def faults() -> bool:
        _, out = await command(cluster, "status", "-o", "json")
        found = json.loads(out)["health"]["faults"]
        return any(
            one["kind"] == kind and subject in one["objects"] and word in one["cause"] for one in found
        )

    await becomes(faults, True, within=60, what=f"status has the fault {kind}")
    _, out = await command(cluster, "doctor", "-o", "json")
    (verdict,) = [one for one in json.loads(out)["links"] if one["name"] == "lowerVerdict"]
    assert word in verdict["detail"], verdict


async def _replacement(upper: Cluster, lower: Cluster, namespace: str) -> None:
    """After a forced deletion, the new pod waits for the name. It had no event, and diagnose said that it starts."""
    await create(upper, namespace, real("db-0"))
    await ready(upper, namespace, "db-0")
    await _hold(lower, namespace, "db-0", FINALIZER)
    await upper.kubectl("-n", namespace, "delete", "pod", "db-0", "--grace-period=0", "--force")
    await create(upper, namespace, real("db-0"))
    try:
        await _named(upper, namespace, "WaitingForPredecessor", FINALIZER)
        await _diagnosed(upper, f"{namespace}/db-0", "(WaitingForPredecessor)", FINALIZER)
        await _is_fault(upper, "WaitingForPredecessor", f"Pod {namespace}/db-0", FINALIZER)
    finally:
        await _hold(lower, namespace, "db-0")
    await ready(upper, namespace, "db-0")


async def _deleted(upper: Cluster, lower: Cluster, namespace: str) -> None:
    """The upper pod stays Terminating."""
    await create(upper, namespace, real("web"))
    await ready(upper, namespace, "web")
    await _hold(lower, namespace, "web", FINALIZER)
    await upper.kubectl("-n", namespace, "delete", "pod", "web", "--wait=false", "--grace-period=1")
    try:
        await _named(upper, namespace, "LowerFinalizer", FINALIZER)
        await _diagnosed(upper, f"{namespace}/web", "(LowerFinalizer)")
    finally:
        await _hold(lower, namespace, "web")


async def _gated(upper: Cluster, namespace: str) -> None:
    """A queue operator of the lower cluster holds back pods with its label. diagnose advised to run the descheduler."""
    await create(upper, namespace, simulated("gated", **{"kueue.x-k8s.io/queue-name": "gold"}))

    async def message() -> bool:
        conditions = (await get(upper, namespace, "pod", "gated"))["status"].get("conditions") or ()
        text = next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
        return GATE in text and "ignore.presets: [kueue]" in text

    await becomes(message, True, within=60, what="the condition names the gate and the setting")
    out = await _diagnosed(upper, f"{namespace}/gated", "(SchedulingGated)")
    assert "descheduler" not in out


async def _refused(upper: Cluster, namespace: str) -> None:
    """JobSet in both clusters: its webhook refuses pods with its labels and without its fields."""
    await create(upper, namespace, simulated("refused", **{"jobset.sigs.k8s.io/jobset-name": "train"}))
    await _named(upper, namespace, "FailedCreate", WEBHOOK, "ignore.presets: [jobset]")


def _changed(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the patch of an operator that holds back a pod."""
    is_gated = body["metadata"]["name"] == "gated"
    return [{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}] if is_gated else []


def _refusal(body: Mapping[str, Any]) -> str:
    """Return why an operator refuses a pod; empty: it does not."""
    return "follower pod node selector not set" if body["metadata"]["name"] == "refused" else ""


async def test_events_and_diagnose_name_what_pods_wait_for(sandbox: Sandbox, upper: Cluster, namespace):
    """All pods wait at the same time, because the grace periods of the waits are the longest part of the test."""
    real_node, simulated_nodes = sandbox.lower[:2]  # other tests add clusters
    await make_namespace(simulated_nodes, namespace)
    async with asyncio.TaskGroup() as group:
        group.create_task(_replacement(upper, real_node, namespace))
        group.create_task(_deleted(upper, real_node, namespace))
        async with admission_webhook(simulated_nodes, namespace, patch=_changed, refusal=_refusal):
            await asyncio.gather(_gated(upper, namespace), _refused(upper, namespace))
        await ready(upper, namespace, "refused")

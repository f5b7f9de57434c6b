"""Pods that wait in the lower cluster: the upper pod and ``diagnose`` name what they wait for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.e2e.conftest import create, get, make_namespace, pod, ready
from tests.e2e.test_commands import command
from tests.field.admission import WEBHOOK, admission_webhook
from tests.field.test_lower_controllers import simulated
from tests.waiting import becomes

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
FINALIZER = "example.com/backup"
GATE = "kueue.x-k8s.io/admission"


def real(name: str) -> dict[str, Any]:
    """Return a pod that ends at once when it is deleted. Simulated nodes remove finalizers."""
    return pod(name, "exec sleep 3600", terminationGracePeriodSeconds=1)


async def _messages(cluster: Cluster, namespace: str, reason: str) -> list[str]:
    events = (await get(cluster, namespace, "events", fields=f"reason={reason}"))["items"]
    return [one["message"] for one in events]


async def test_replacement_names_the_finalizer_of_its_predecessor(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """After a forced deletion, the new pod waits for the name. It had no event, and diagnose said that it starts."""
    lower = sandbox.lower[0]
    await create(upper, namespace, real("db-0"))
    await ready(upper, namespace, "db-0")
    await lower.kubectl(
        "-n", namespace, "patch", "pod", "db-0", "-p", json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    )
    await upper.kubectl("-n", namespace, "delete", "pod", "db-0", "--grace-period=0", "--force")
    await create(upper, namespace, real("db-0"))
    try:

        async def named() -> bool:
            return any(
                FINALIZER in text for text in await _messages(upper, namespace, "WaitingForPredecessor")
            )

        await becomes(named, True, within=40, what="an event names the finalizer")
        code, out = await command(upper, "diagnose", "pod", f"{namespace}/db-0")
        assert code == 1
        assert "(WaitingForPredecessor)" in out
        assert FINALIZER in out
    finally:
        await lower.kubectl("-n", namespace, "patch", "pod", "db-0", "-p", '{"metadata":{"finalizers":null}}')
    await ready(upper, namespace, "db-0")


async def test_deleted_pod_names_the_finalizer_of_its_lower_pod(sandbox: Sandbox, upper: Cluster, namespace):
    """The upper pod stays Terminating."""
    lower = sandbox.lower[0]
    await create(upper, namespace, real("web"))
    await ready(upper, namespace, "web")
    await lower.kubectl(
        "-n", namespace, "patch", "pod", "web", "-p", json.dumps({"metadata": {"finalizers": [FINALIZER]}})
    )
    await upper.kubectl("-n", namespace, "delete", "pod", "web", "--wait=false", "--grace-period=1")
    try:

        async def named() -> bool:
            return any(FINALIZER in text for text in await _messages(upper, namespace, "LowerFinalizer"))

        await becomes(named, True, within=40, what="an event names the finalizer")
        code, out = await command(upper, "diagnose", "pod", f"{namespace}/web")
        assert code == 1
        assert "(LowerFinalizer)" in out
    finally:
        await lower.kubectl("-n", namespace, "patch", "pod", "web", "-p", '{"metadata":{"finalizers":null}}')


async def test_scheduling_gate_of_the_lower_cluster_is_named_with_its_remedy(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """A queue operator of the lower cluster holds back pods with its label. diagnose advised to run the descheduler."""
    lower = sandbox.lower[1]
    await make_namespace(lower, namespace)
    async with admission_webhook(
        lower, namespace, patch=[{"op": "add", "path": "/spec/schedulingGates", "value": [{"name": GATE}]}]
    ):
        await create(upper, namespace, simulated("web", **{"kueue.x-k8s.io/queue-name": "gold"}))

        async def message() -> bool:
            conditions = (await get(upper, namespace, "pod", "web"))["status"].get("conditions") or ()
            text = next((one.get("message", "") for one in conditions if one["type"] == "PodScheduled"), "")
            return GATE in text and "ignore.presets: [kueue]" in text

        await becomes(message, True, within=40, what="the condition names the gate and the setting")
        code, out = await command(upper, "diagnose", "pod", f"{namespace}/web")
        assert code == 1
        assert "(SchedulingGated)" in out
        assert "descheduler" not in out


async def test_refusal_of_a_lower_webhook_names_webhook_and_remedy(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """JobSet in both clusters: its webhook refuses pods with its labels and without its fields."""
    lower = sandbox.lower[1]
    await make_namespace(lower, namespace)
    async with admission_webhook(lower, namespace, refusal="follower pod node selector not set"):
        await create(upper, namespace, simulated("web", **{"jobset.sigs.k8s.io/jobset-name": "train"}))

        async def named() -> bool:
            found = await _messages(upper, namespace, "FailedCreate")
            return any(WEBHOOK in text and "ignore.presets: [jobset]" in text for text in found)

        await becomes(named, True, within=40, what="the event names the webhook and the setting")
    await ready(upper, namespace, "web")

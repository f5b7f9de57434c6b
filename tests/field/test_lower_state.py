"""Labels and annotations that the lower cluster sets stay there, and state of the upper cluster is not sent down."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.field.admission import admission_webhook
from tests.waiting import becomes, create, get, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
ZONE = "topology.kubernetes.io/zone"
POD_IP = "cni.projectcalico.org/podIP"


async def annotations_of(cluster: Cluster, namespace: str, *keys: str) -> list[str | None]:
    """Return annotations of pod ``web``."""
    found = (await get(cluster, namespace, "pod", "web"))["metadata"].get("annotations") or {}
    return [found.get(key) for key in keys]


async def test_values_of_lower_network_plugins_and_admission_stay(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """A later change of the upper pod changes only what it concerns."""
    lower = sandbox.lower[1]

    def inject(_body: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"op": "replace", "path": "/metadata/annotations/example.com~1level", "value": "lower"}]

    above = {
        POD_IP: "10.16.0.5",
        "ovn.kubernetes.io/allocated": "true",
        "k8s.v1.cni.cncf.io/network-status": "[]",
        "kubernetes.io/config.source": "api",
        "example.com/level": "upper",
        "example.com/own": "1",
    }
    state = [key for key in above if not key.startswith("example.com/")]
    async with admission_webhook(lower, namespace, patch=inject):
        await create(
            upper,
            namespace,
            pod("web", "true", node=SIMULATED, metadata={"labels": {"app": "web"}, "annotations": above}),
        )
        await ready(upper, namespace, "web")
    assert await annotations_of(lower, namespace, *state, "example.com/level") == [None] * len(state) + [
        "lower"
    ]
    for command in (
        ("annotate", "pod", "web", f"{POD_IP}=10.99.0.7", "example.com/state=lower"),
        ("label", "pod", "web", "app=lower", "--overwrite"),
    ):
        await lower.kubectl("-n", namespace, *command)
    await upper.kubectl(
        "-n",
        namespace,
        "annotate",
        "pod",
        "web",
        "example.com/state=upper",
        "example.com/own=2",
        "--overwrite",
    )
    await becomes(
        lambda: annotations_of(
            lower, namespace, "example.com/own", "example.com/level", "example.com/state", POD_IP
        ),
        ["2", "lower", "lower", "10.99.0.7"],
        what="only the changed annotation is sent",
    )
    assert (await get(lower, namespace, "pod", "web"))["metadata"]["labels"]["app"] == "lower"
    await upper.kubectl("-n", namespace, "annotate", "pod", "web", "example.com/level=3", "--overwrite")
    await becomes(
        lambda: annotations_of(lower, namespace, "example.com/level"), ["3"], what="the user's change is sent"
    )


@pytest.mark.parametrize("above", ["z-virtual", ""])
async def test_a_container_sees_one_zone(sandbox: Sandbox, upper: Cluster, namespace: str, above: str):
    """That of its upper pod, otherwise that of its lower node, which the lower API server writes to the lower pod."""
    lower = sandbox.lower[0]

    def bind(_body: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [{"op": "add", "path": f"/metadata/labels/{ZONE.replace('/', '~1')}", "value": "z-real"}]

    reference = {"fieldRef": {"fieldPath": f"metadata.labels['{ZONE}']"}}
    items = [{"path": "zone", **reference}, {"path": "all", "fieldRef": {"fieldPath": "metadata.labels"}}]
    # The file with all labels has the zone of the lower node once the upper pod has its label.
    of_all = f"$(grep {ZONE} /d/all)" if above else ""
    script = f"echo $ZONE $(cat /d/zone) {of_all}; sleep 10000"
    async with admission_webhook(lower, namespace, patch=bind):
        await create(
            upper,
            namespace,
            pod(
                "web",
                script,
                metadata={"labels": {"app": "web", **({ZONE: above} if above else {})}},
                container={
                    "env": [{"name": "ZONE", "valueFrom": reference}],
                    "volumeMounts": [{"name": "d", "mountPath": "/d"}],
                },
                volumes=[{"name": "d", "downwardAPI": {"items": items}}],
            ),
        )
        await ready(upper, namespace, "web")

    zone, line = (above, f' {ZONE}="{above}"') if above else ("z-real", "")

    async def log() -> str:
        return (await upper.kubectl("-n", namespace, "logs", "web")).stdout

    await becomes(log, f"{zone} {zone}{line}\n", what="environment and files agree")
    await upper.kubectl("-n", namespace, "label", "pod", "web", "more=1")

    async def below() -> list[str | None]:
        labels = (await get(lower, namespace, "pod", "web"))["metadata"]["labels"]
        return [labels.get("more"), labels.get(ZONE)]

    await becomes(below, ["1", "z-real"], what="the lower pod keeps the zone of its node")

    async def label() -> str | None:
        found: str | None = (await get(upper, namespace, "pod", "web"))["metadata"]["labels"].get(ZONE)
        return found

    await becomes(label, zone, what="the upper pod's label is the value that the container sees")

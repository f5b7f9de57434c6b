"""A user's misspelt annotation is reported on the pod (``tests/clusters/scheduling/test_webhook.py``: and by kubectl)."""

from __future__ import annotations

import pytest

from hack.sandbox import Cluster
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import create, eventually, get, ready

pytestmark = pytest.mark.e2e
_KEY = "virtual-node.io/kubernetes-service"


async def test_misspelt_value_is_an_event_of_the_pod(upper: Cluster, namespace: str):
    """The pod has no label, so no webhook sees it. It runs, with the default."""
    made = pod("web", "sleep 3600", node=SIMULATED)
    made["metadata"]["annotations"] = {_KEY: "uper"}
    await create(upper, namespace, made)
    await ready(upper, namespace, "web")

    async def is_reported() -> bool:
        events = (await get(upper, namespace, "events"))["items"]
        return [one["message"] for one in events if one["reason"] == "IgnoredAnnotation"] == [
            f"metadata.annotations[{_KEY}]: 'uper': write upper, lower or auto"
        ]

    await eventually(is_reported, what="the event")

"""kube-state-metrics: the series of a node and of its pods."""

from __future__ import annotations

import re
from typing import Any

from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.workloads import manifest

_SERIES = re.compile(r"^(?P<name>kube_\w+)\{(?P<labels>.*)\} (?P<value>\S+)$", re.MULTILINE)
_PROXY = "services/kube-state-metrics:8080/proxy/metrics"


async def _run(place: Place) -> Observations:
    image = place.import_program("kube-state-metrics", "/kube-state-metrics")
    published = await manifests.rendered(place.tools.modules["kube-state-metrics"] / "examples" / "standard")
    await place.install(
        *(manifests.moved(one, place.namespace) for one in published), images={"kube-state-metrics": image}
    )
    await place.apply(_pod(place))

    async def phase() -> str:
        return str((await place.pods())[0]["status"]["phase"])

    await place.becomes(phase, "Running", "the pod runs")
    seen: list[tuple[str, str, str]] = []

    async def ready() -> bool:
        text = (
            await place.cluster.kubectl("get", "--raw", f"/api/v1/namespaces/{place.namespace}/{_PROXY}")
        ).stdout
        seen[:] = [(found["name"], found["labels"], found["value"]) for found in _SERIES.finditer(text)]
        wanted = f'namespace="{place.namespace}",pod="worker"'
        return any(
            name == "kube_pod_status_ready"
            and wanted in labels
            and 'condition="true"' in labels
            and value == "1"
            for name, labels, value in seen
        )

    await place.becomes(ready, True, "the series of the ready pod")
    node = f'node="{place.node}"'
    return {
        "series of the pod": sorted({name for name, labels, _ in seen if 'pod="worker"' in labels}),
        "series of the node": sorted(
            {name for name, labels, _ in seen if node in labels and name.startswith("kube_node")}
        ),
        "node of the pod": any(
            name == "kube_pod_info" and 'pod="worker"' in labels and node in labels
            for name, labels, _ in seen
        ),
    }


def _pod(place: Place) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sleep", "3600"],
        "resources": {"requests": {"cpu": "10m", "memory": "10Mi"}, "limits": {"memory": "50Mi"}},
    }
    spec = place.pod_spec(container)
    return manifest("Pod", "worker", metadata={"namespace": place.namespace}, spec=spec)


SOFTWARE = Software(
    name="kube-state-metrics",
    job="the series of a running pod and of its node",
    run=_run,
    programs=("kube-state-metrics",),
)

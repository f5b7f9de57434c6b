"""Prometheus on the node: it discovers the node, and scrapes its kubelet API as the documentation says."""

from __future__ import annotations

from typing import Any

import yaml

from tests.company.place import Place
from tests.company.software import Observations, Software
from tests.recipes import block
from tests.workloads import manifest

_DASHBOARDS = (
    *("kubelet_node_name", "kubelet_running_pods", "kubelet_running_containers", "kubelet_node_config_error"),
    *("kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total"),
    *("kubelet_runtime_operations_duration_seconds_bucket", "kubelet_pod_start_duration_seconds_bucket"),
    *("kubelet_pod_worker_duration_seconds_bucket", "kubelet_pleg_relist_duration_seconds_bucket"),
    *("kubelet_pleg_relist_interval_seconds_bucket", "kubelet_cgroup_manager_duration_seconds_bucket"),
)
"""What the dashboards and rules of kube-prometheus-stack read of a kubelet."""
_PATHS = ("/metrics", "/metrics/cadvisor", "/metrics/resource")


async def _run(place: Place) -> Observations:
    await place.apply(_worker(place), *_rights(place), *_prometheus(place))
    await place.becomes(lambda: _up(place), dict.fromkeys(_PATHS, "1"), "Prometheus scrapes the kubelet")
    pod = f'namespace="{place.namespace}",pod="worker"'

    async def measured() -> bool:
        names = await _names(place, f'{pod},metrics_path="/metrics/cadvisor"')
        return "container_memory_working_set_bytes" in names and "container_cpu_usage_seconds_total" in names

    await place.becomes(measured, True, "the pod is measured")
    kubelet = set(await _names(place, 'metrics_path="/metrics"'))
    return {
        "series of the pod (cadvisor)": await _names(place, f'{pod},metrics_path="/metrics/cadvisor"'),
        "series of the pod (resource)": await _names(place, f'{pod},metrics_path="/metrics/resource"'),
        "series of the kubelet that dashboards read": sorted(kubelet & set(_DASHBOARDS)),
    }


def _jobs(place: Place) -> list[dict[str, Any]]:
    """Return the scrape jobs of the documentation, and one for /metrics/resource; directly for the lower node."""
    values = block("kube-prometheus-stack", "kube-prometheus-stack.yaml")
    jobs: list[dict[str, Any]] = values["prometheus"]["prometheusSpec"]["additionalScrapeConfigs"]
    cadvisor = next(job for job in jobs if job["metrics_path"] == "/metrics/cadvisor")
    text = yaml.safe_dump(cadvisor).replace("cadvisor", "resource")
    jobs.append(yaml.safe_load(text))
    if not place.virtual:
        for job in jobs:
            job["kubernetes_sd_configs"][0]["selectors"][0]["label"] = f"kubernetes.io/hostname={place.node}"
    return jobs


def _rights(place: Place) -> list[dict[str, Any]]:
    group = "rbac.authorization.k8s.io"
    metadata = {"namespace": place.namespace}
    rules = [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
    ]
    subject = {"kind": "ServiceAccount", "name": "prometheus", "namespace": place.namespace}
    role = {"apiGroup": group, "kind": "ClusterRole", "name": "company-prometheus"}
    return [
        manifest("ServiceAccount", "prometheus", metadata=metadata),
        manifest("ClusterRole", "company-prometheus", api=f"{group}/v1", rules=rules),
        manifest(
            "ClusterRoleBinding", "company-prometheus", api=f"{group}/v1", roleRef=role, subjects=[subject]
        ),
    ]


def _prometheus(place: Place) -> list[dict[str, Any]]:
    image = place.import_program("prometheus", "/bin/prometheus")
    config = {"global": {"scrape_interval": "5s", "scrape_timeout": "5s"}, "scrape_configs": _jobs(place)}
    labels = {"app": "prometheus"}
    metadata = {"namespace": place.namespace}
    container = {
        "name": "prometheus",
        "image": image,
        "args": ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/data"],
        "volumeMounts": [
            {"name": "config", "mountPath": "/etc/prometheus"},
            {"name": "data", "mountPath": "/data"},
        ],
        "readinessProbe": {"httpGet": {"path": "/-/ready", "port": 9090}, "periodSeconds": 2},
    }
    spec = {
        "serviceAccountName": "prometheus",
        "securityContext": {"fsGroup": 65532},
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": "prometheus"}},
            {"name": "data", "emptyDir": {}},
        ],
        **place.scheduling,
    }
    template = {"metadata": {"labels": labels}, "spec": spec}
    return [
        manifest(
            "ConfigMap", "prometheus", metadata=metadata, data={"prometheus.yml": yaml.safe_dump(config)}
        ),
        manifest(
            "Service", "prometheus", metadata=metadata, spec={"selector": labels, "ports": [{"port": 9090}]}
        ),
        manifest(
            "Deployment",
            "prometheus",
            api="apps/v1",
            metadata=metadata,
            spec={"selector": {"matchLabels": labels}, "template": template},
        ),
    ]


def _worker(place: Place) -> dict[str, Any]:
    script = "while true; do sleep 0.1; done"
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    spec = place.pod_spec(container)
    return manifest("Pod", "worker", metadata={"namespace": place.namespace}, spec=spec)


async def _up(place: Place) -> dict[str, str]:
    """Return the metrics paths of targets, and whether the last scrape worked."""
    return {one["metric"]["metrics_path"]: one["value"][1] for one in await _query(place, "up")}


async def _names(place: Place, selector: str) -> list[str]:
    """Return the names of the series that a selector matches."""
    found = await _query(place, f"group by (__name__) ({{{selector}}})")
    return sorted(one["metric"]["__name__"] for one in found)


async def _query(place: Place, expression: str) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{place.namespace}/services/prometheus:9090/proxy/api/v1/query"
    result: list[dict[str, Any]] = (await place.get(path, query=expression))["data"]["result"]
    return result


SOFTWARE = Software(
    name="prometheus",
    job="a Prometheus on the node scrapes the node's kubelet API by the jobs of "
    "[kube-prometheus-stack](../operate/other-programs.md#kube-prometheus-stack)",
    run=_run,
    programs=("prometheus",),
)

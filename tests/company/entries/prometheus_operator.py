"""The Prometheus operator: it finds the kubelet of the node, and its Prometheus scrapes it."""

from __future__ import annotations

from typing import Any

import yaml

from tests.company import manifests
from tests.company.place import Place
from tests.company.software import Observations, Software, module_version
from tests.recipes import block
from tests.workloads import manifest

_API = "monitoring.coreos.com/v1"
_PATHS = ("/metrics", "/metrics/cadvisor", "/metrics/probes", "/metrics/resource")
_DASHBOARDS = (
    *("kubelet_node_name", "kubelet_running_pods", "kubelet_running_containers", "kubelet_node_config_error"),
    *("kubelet_runtime_operations_total", "kubelet_runtime_operations_errors_total"),
    *("kubelet_runtime_operations_duration_seconds_bucket", "kubelet_pod_start_duration_seconds_bucket"),
    *("kubelet_pod_worker_duration_seconds_bucket", "kubelet_pleg_relist_duration_seconds_bucket"),
    *("kubelet_pleg_relist_interval_seconds_bucket", "kubelet_cgroup_manager_duration_seconds_bucket"),
    *(
        "volume_manager_total_volumes",
        "storage_operation_duration_seconds_bucket",
        "rest_client_requests_total",
    ),
    *("process_resident_memory_bytes", "process_cpu_seconds_total", "go_goroutines"),
)
"""What the dashboards and rules of kube-prometheus-stack read of a kubelet."""


async def _run(place: Place) -> Observations:
    await _install(place)
    await place.apply(_worker(place), *_prometheus(place), _service_monitor(place))
    await place.becomes(
        lambda: _up(place, 'endpoint="https-metrics"'),
        dict.fromkeys(_PATHS, "1"),
        "Prometheus scrapes the kubelet that the operator found",
    )
    if place.virtual:
        await place.becomes(
            lambda: _up(place, 'endpoint="",job="kubelet"'),
            {"/metrics": "1", "/metrics/cadvisor": "1"},
            "the scrape jobs of the documentation work",
        )
    pod = f'namespace="{place.namespace}",pod="worker"'

    async def measured() -> bool:
        names = await _names(place, f'{pod},metrics_path="/metrics/cadvisor"')
        return "container_memory_working_set_bytes" in names and "container_cpu_usage_seconds_total" in names

    await place.becomes(measured, True, "the pod is measured")
    own = 'endpoint="https-metrics",metrics_path="/metrics"'
    return {
        "series of the pod (cadvisor)": await _names(place, f'{pod},metrics_path="/metrics/cadvisor"'),
        "series of the pod (resource)": await _names(place, f'{pod},metrics_path="/metrics/resource"'),
        "series of the kubelet that dashboards read": sorted(
            set(await _names(place, own)) & set(_DASHBOARDS)
        ),
    }


async def _install(place: Place) -> None:
    operator = place.import_program("prometheus-operator", "/bin/operator")
    reloader = place.import_program("prometheus-config-reloader", "/bin/prometheus-config-reloader")
    published = manifests.read(place.tools.modules["prometheus-operator"] / "bundle.yaml")
    await place.install(
        *published,
        images={"prometheus-operator": operator},
        arguments={"prometheus-operator": [f"--prometheus-config-reloader={reloader}"]},
    )
    roles = place.tools.modules["prometheus-operator"] / "example" / "rbac" / "prometheus"
    await place.install(
        *(
            _bound(place, one)
            for name in ("cluster-role", "cluster-role-binding", "service-account")
            for one in manifests.read(roles / f"prometheus-{name}.yaml")
        )
    )


def _bound(place: Place, one: dict[str, Any]) -> dict[str, Any]:
    """Return an object of the example for the job's namespace."""
    for subject in one.get("subjects", []):
        subject["namespace"] = place.namespace
    return manifests.in_namespace(one, place.namespace)


def _prometheus(place: Place) -> list[dict[str, Any]]:
    image = place.import_program("prometheus", "/bin/prometheus")
    # Module v0.316.0 is Prometheus 3.16.0.
    minor = int(module_version("prometheus").split(".")[1])
    values = block("kube-prometheus-stack", "kube-prometheus-stack.yaml")
    jobs = values["prometheus"]["prometheusSpec"]["additionalScrapeConfigs"] if place.virtual else []
    secret = manifest(
        "Secret",
        "jobs",
        metadata={"namespace": place.namespace},
        stringData={"jobs.yaml": yaml.safe_dump(jobs)},
    )
    spec = {
        "image": image,
        "version": f"v{minor // 100}.{minor % 100}.0",
        "serviceAccountName": "prometheus",
        "scrapeInterval": "5s",
        "scrapeTimeout": "5s",
        "serviceMonitorSelector": {},
        "additionalScrapeConfigs": {"name": "jobs", "key": "jobs.yaml"},
        **place.scheduling,
    }
    return [
        secret,
        manifest("Prometheus", "company", api=_API, metadata={"namespace": place.namespace}, spec=spec),
    ]


def _service_monitor(place: Place) -> dict[str, Any]:
    """Return the ServiceMonitor of kube-prometheus-stack for kubelets."""
    endpoints = [
        {
            "port": "https-metrics",
            "scheme": "https",
            "path": path,
            "honorLabels": True,
            "bearerTokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token",
            "tlsConfig": {"insecureSkipVerify": True},
            "relabelings": [{"sourceLabels": ["__metrics_path__"], "targetLabel": "metrics_path"}],
        }
        for path in _PATHS
    ]
    spec = {
        "jobLabel": "k8s-app",
        "endpoints": endpoints,
        "namespaceSelector": {"matchNames": ["kube-system"]},
        "selector": {"matchLabels": {"app.kubernetes.io/name": "kubelet"}},
    }
    return manifest("ServiceMonitor", "kubelet", api=_API, metadata={"namespace": place.namespace}, spec=spec)


def _worker(place: Place) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "busybox:1.36",
        "command": ["sh", "-c", "while true; do sleep 0.1; done"],
    }
    spec = place.pod_spec(container)
    return manifest("Pod", "worker", metadata={"namespace": place.namespace}, spec=spec)


async def _up(place: Place, selector: str) -> dict[str, str]:
    """Return the metrics paths of targets, and whether the last scrape worked."""
    return {
        one["metric"]["metrics_path"]: one["value"][1] for one in await _query(place, f"up{{{selector}}}")
    }


async def _names(place: Place, selector: str) -> list[str]:
    """Return the names of the series that a selector matches."""
    return sorted(
        one["metric"]["__name__"] for one in await _query(place, f"group by (__name__) ({{{selector}}})")
    )


async def _query(place: Place, expression: str) -> list[dict[str, Any]]:
    path = f"/api/v1/namespaces/{place.namespace}/services/prometheus-operated:9090/proxy/api/v1/query"
    result: list[dict[str, Any]] = (await place.get(path, query=expression))["data"]["result"]
    return result


SOFTWARE = Software(
    name="prometheus-operator",
    job="the operator runs a Prometheus that scrapes the kubelet API of its node, by the operator's kubelet Service and "
    "by the jobs of [kube-prometheus-stack](../operate/other-programs.md#kube-prometheus-stack)",
    run=_run,
    programs=("prometheus", "prometheus-operator", "prometheus-config-reloader"),
)

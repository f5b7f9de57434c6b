"""A lower cluster cannot add metric series without a limit."""

from __future__ import annotations

from prometheus_client import REGISTRY

from controller_runtime.client.transport import TransportMetrics
from virtual_node import metrics


def _series(name: str, **labels: str) -> list[dict[str, str]]:
    return [
        sample.labels
        for metric in REGISTRY.collect()
        for sample in metric.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]


def _show(*resources: str, cluster: str = "labels") -> None:
    metrics.show_node(
        cluster, "vn", ready=True, allocatable=dict.fromkeys(resources, "1"), counting=1, selected=1
    )


def test_a_resource_that_the_cluster_no_longer_has_is_removed():
    """Its nodes may report other resources with each change."""
    for number in range(20):
        _show("cpu", f"example.com/r{number}")
    found = _series("virtual_node_node_allocatable", cluster="labels")
    assert sorted(labels["resource"] for labels in found) == ["cpu", "example.com/r19"]
    metrics.forget_cluster("labels")
    assert _series("virtual_node_node_allocatable", cluster="labels") == []
    _show("memory")
    metrics.forget_cluster("labels")


def test_codes_that_http_does_not_define_share_a_series():
    counted = TransportMetrics("codes")
    for code in (0, 200, 403, *range(600, 1000)):
        counted.count("GET", code)
    codes = {labels["code"] for labels in _series("rest_client_requests_total", cluster="codes")}
    assert codes == {"<error>", "200", "403", "other"}

"""Which ConfigMap each program reads, what is in it, and which changes of it restart which programs."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.thorough import some
from tests.unit.charts.rendering import configuration, mounted, render

CLUSTERS = "clusters: [{name: a, kubeconfigSecret: {name: s}}, {name: b, kubeconfig: text}]"
PROFILES = "clusterProfiles: {namespace: fleet, providers: [{name: p, execConfig: {command: c}}]"
SHARED = "vn-virtual-node"
OWN = "vn-virtual-node-annotator"


def _read(items: list[dict[str, Any]], component: str) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(configuration(items, component))
    return document


def _name(items: list[dict[str, Any]], component: str) -> str:
    name: str = mounted(items, component)["metadata"]["name"]
    return name


@pytest.mark.parametrize(
    ("virtual_node", "annotator", "read"),
    [
        (CLUSTERS, "{enabled: true}", SHARED),
        (f"{CLUSTERS}, {PROFILES}, names: [c]}}", "{enabled: true}", SHARED),
        (f"{CLUSTERS}, {PROFILES}}}", "{enabled: true}", OWN),
        (CLUSTERS, "{enabled: true, usage: {source: Summary}}", OWN),
    ],
)
def test_all_programs_read_one_file_unless_the_annotator_needs_its_own(virtual_node, annotator, read):
    items = render(f"virtualNode: {{{virtual_node}}}\nannotator: {annotator}")
    assert _name(items, "virtual-node") == _name(items, "multi-scheduler") == SHARED
    assert _name(items, "annotator") == read
    assert {item["metadata"]["name"] for item in items if "virtual-node.yaml" in item.get("data", {})} == {
        SHARED,
        read,
    }


def test_file_of_the_annotator_has_its_own_usage_and_no_profiles_of_any_name():
    items = render(
        f"virtualNode: {{{CLUSTERS}, {PROFILES}}}}}\n"
        "multiScheduler: {usage: {source: Annotations}, clusterUsage: {a: {source: Annotations}}}\n"
        "annotator: {enabled: true, usage: {source: Summary}}"
    )
    document = _read(items, "annotator")
    assert document["usage"] == {"source": "Summary"}
    assert [cluster.get("usage") for cluster in document["clusters"]] == [None, None]
    assert "clusterProfiles" not in document
    assert "providers.yaml" not in mounted(items, "annotator")["data"]


def test_settings_of_the_extender_are_in_the_file_and_usage_of_single_clusters_in_the_clusters():
    items = render(
        f"virtualNode: {{{CLUSTERS}}}\n"
        "multiScheduler: {usage: {source: Summary}, clusterUsage: {b: {source: Resource}}, unknownNodes: Pass}"
    )
    document = _read(items, "multi-scheduler")
    assert document["unknownNodes"] == "Pass"
    assert document["usage"] == {"source": "Summary"}
    assert [cluster.get("usage") for cluster in document["clusters"]] == [None, {"source": "Resource"}]


def test_release_without_extender_has_no_settings_of_it():
    items = render(
        f"virtualNode: {{{CLUSTERS}}}\nmultiScheduler: {{enabled: false, usage: {{source: Summary}}}}"
    )
    assert not {"agents", "usage", "unknownNodes"} & set(_read(items, "virtual-node"))


def test_release_without_virtual_nodes_has_no_settings_of_them():
    """Its ConfigMap has another name, so that the files in hack/ do not replace each other's ConfigMap."""
    items = render(
        f"virtualNode: {{enabled: false, {CLUSTERS}, config: {{enableControllers: [], workers: 1}}}}"
    )
    assert _name(items, "multi-scheduler") == "vn-virtual-node-multi-scheduler"
    document = _read(items, "multi-scheduler")
    assert set(document) == {"apiVersion", "kind", "agents", "clusters", "enableControllers", "unknownNodes"}
    assert document["enableControllers"] == []


_ALL = {"virtual-node", "multi-scheduler", "annotator"}
_READERS = _ALL - {"virtual-node"}


@pytest.mark.parametrize(
    ("value", "restarted"),
    some(
        [
            ("virtualNode.clusters[0].config.labels.a=b", set()),
            ("virtualNode.clusters[0].config.onUnschedulable=Reject", set()),
            ("virtualNode.clusters[0].config.nodes[0].capacity.reserve.cpu=10%", set()),
            ("virtualNode.clusters[0].config.volumes.deletionPolicy=Retain", set()),
            ("virtualNode.clusters[0].config.volumes.allowedHostPaths[0]=/data", _READERS),
            ("virtualNode.clusters[0].config.nodes[0].nodeSelector.a=b", _READERS),
            ("virtualNode.clusters[0].config.policy.privileged=true", _READERS),
            ("virtualNode.clusters[0].config.context=c", _READERS),
            ("virtualNode.config.podSyncWorkers=7", {"virtual-node"}),
            ("virtualNode.clusterProfiles.defaults.labels.a=b", {"virtual-node"}),
            ("virtualNode.clusterProfiles.defaults.nodeSelector.a=b", _ALL),
            ("virtualNode.config.enableControllers[0]=PVControllers", _ALL),
            ("multiScheduler.agents[0].name=pressure", _READERS),
            ("multiScheduler.unknownNodes=Pass", _READERS),
            ("multiScheduler.clusterUsage.a.source=Summary", _READERS),
            ("multiScheduler.upperUsage.source=Summary", {"multi-scheduler"}),
        ],
        8,
    ),
)
def test_changed_settings_restart_the_programs_that_do_not_apply_them(value, restarted):
    """The virtual node applies changes of the clusters without a restart; the extender ignores settings of the virtual node."""
    given = (
        "virtualNode: {clusters: [{name: a, kubeconfigSecret: {name: s}, config: {nodes: [{name: n1}]}}], "
        f"{PROFILES}, names: [c]}}}}\nannotator: {{enabled: true}}"
    )
    before, after = _checksums(given), _checksums(given, f"--set={value}")
    assert {component for component in _ALL if before[component] != after[component]} == restarted


def _checksums(given: str, *arguments: str) -> dict[str, str]:
    return {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: next(
            (
                value
                for name, value in item["spec"]["template"]["metadata"].get("annotations", {}).items()
                if name.startswith("checksum/")
            ),
            "",
        )
        for item in render(given, arguments=arguments)
        if item["kind"] == "Deployment"
    }

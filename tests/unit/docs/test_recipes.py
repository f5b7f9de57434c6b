"""The recipes of docs/operate/other-programs.md have the effect that the page names. ``test_guides`` checks that they are valid."""

from __future__ import annotations

import re
from typing import Any

import pytest

from clusterset.config import Cluster
from clusterset.model import operators
from clusterset.model.policy.config import AnnotationRules
from clusterset.model.policy.decision import violations
from clusterset.model.policy.rules import PolicySet, matches
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.decoding import convert
from tests.recipes import block
from virtual_node.kubelet.series import NodeSeries
from virtual_node.metrics import pod_work
from webhook.mutation import mutate
from webhook.program import PROGRAM

VIRTUAL = {"type": "virtual-kubelet", "kubernetes.io/hostname": "lower1"}


def _database() -> tuple[dict[str, Any], dict[str, str]]:
    template = block("Databases in a StatefulSet", "database.yaml")["spec"]["template"]
    return template["spec"], template["metadata"]["labels"]


@pytest.mark.parametrize(("namespace", "moves"), [("databases", True), ("db-eu", True), ("shop", False)])
def test_the_flag_moves_the_anti_affinity_of_databases(namespace: str, moves: bool):  # noqa: FBT001
    arguments = block("Databases in a StatefulSet", "values.yaml")["webhook"]["extraArgs"]
    surroundings = PROGRAM.parse(arguments, {}).surroundings
    assert mutate.is_wanted({}, namespace, surroundings.move_anti_affinity) == moves
    spec, labels = _database()
    rest, moved = mutate.split(spec, labels, namespace)
    assert len(moved) == 1
    assert "affinity" not in rest


def test_the_operator_of_prometheus_leaves_virtual_nodes_to_the_scrape_jobs():
    """Together they find every Node once, and the jobs keep the series that only kubelets have."""
    values = block("kube-prometheus-stack", "kube-prometheus-stack.yaml")
    real = matching.parse_selector(values["prometheusOperator"]["kubeletService"]["selector"])
    assert not real(VIRTUAL)
    assert real({})
    jobs = values["prometheus"]["prometheusSpec"]["additionalScrapeConfigs"]
    assert len({job["job_name"] for job in jobs}) == len(jobs)
    for job in jobs:
        (discovery,) = job["kubernetes_sd_configs"]
        (selector,) = discovery["selectors"]
        assert discovery["role"] == selector["role"] == "node"
        assert matching.parse_selector(selector["label"])(VIRTUAL)
        assert {"target_label": "job", "replacement": "kubelet"} in job["relabel_configs"]
        assert {"target_label": "metrics_path", "replacement": job["metrics_path"]} in job["relabel_configs"]
    (kept,) = jobs[0]["metric_relabel_configs"]
    names = [
        family.name
        for family in NodeSeries("vn", certificate_expires=lambda: 1.0, work=pod_work())._families()
    ]
    assert all(re.fullmatch(kept["regex"], name) for name in names)
    exporter = values["prometheus-node-exporter"]
    assert not matching.admits(exporter, name="lower1", labels=VIRTUAL, taints=())
    assert matching.admits(exporter, name="real", labels={}, taints=())


def _cluster(heading: str) -> Cluster:
    (entry,) = block(heading, "values.yaml")["virtualNode"]["clusters"]
    return convert({"name": entry["name"], "kubeconfig": "file", **entry.get("config", {})}, Cluster)


@pytest.mark.parametrize(
    ("key", "is_allowed"),
    [
        ("sidecar.istio.io/userVolume", False),
        ("inject.istio.io/templates", False),
        ("proxy.istio.io/config", False),
        *((key, False) for key in (pattern.replace("*", "x") for pattern in AnnotationRules().deny)),
        ("example.com/team", True),
    ],
)
def test_pods_of_the_mesh_do_not_change_their_sidecars(key: str, is_allowed: bool):  # noqa: FBT001
    pod = {"metadata": {"namespace": "shop", "annotations": {key: "x"}}, "spec": {"containers": []}}
    assert (violations(pod, PolicySet(_cluster("Istio").policy).of("shop")) == []) == is_allowed


@pytest.mark.parametrize("label", ["istio-injection", "istio.io/rev", "istio.io/dataplane-mode"])
def test_labels_of_the_mesh_follow(label: str):
    assert matches(label, _cluster("Istio").namespaces.labels)


def test_the_flavor_of_kueue_selects_a_virtual_node():
    flavor = block("Kueue in both clusters", "flavor.yaml")["spec"]
    _check_selects_a_virtual_node(flavor["nodeLabels"], flavor["tolerations"])


def test_the_pods_of_spark_select_a_virtual_node():
    spec = block("Spark", "spark-pod.yaml")["spec"]
    _check_selects_a_virtual_node(spec["nodeSelector"], spec["tolerations"])


def _check_selects_a_virtual_node(selector: dict[str, str], tolerations: list[dict[str, str]]) -> None:
    labels = {**VIRTUAL, "virtual-node.io/lower-cluster": "lower1"}
    taint = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
    spec = {"nodeSelector": selector, "tolerations": tolerations}
    assert matching.admits(spec, name="lower1", labels=labels, taints=[taint])
    assert not matching.admits(spec, name="lower2", labels=VIRTUAL, taints=[taint])
    assert not matching.admits({**spec, "tolerations": []}, name="lower1", labels=labels, taints=[taint])


def test_the_lower_kueue_does_not_see_its_labels():
    config = block("Kueue in both clusters", "values.yaml")["virtualNode"]["config"]
    ignored = operators.patterns(config["ignore"]["presets"])
    for key in ("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/managed", "kueue.x-k8s.io/pod-group-name"):
        assert matches(key, ignored)

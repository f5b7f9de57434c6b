"""matchLabelKeys of a stored pod in the lower cluster, which refuses duplicates."""

from __future__ import annotations

from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lower_pod


def test_selectors_are_sent_as_the_upper_apiserver_completed_them():
    """Without the keys: they are in the selector, which every version of Kubernetes supports."""
    selector = {"matchExpressions": [{"key": "pod-template-hash", "operator": "In", "values": ["5d"]}]}
    term = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    stored = {**term, "matchLabelKeys": ["pod-template-hash"]}
    upper = {
        "metadata": {"name": "p", "namespace": "n", "uid": "u", "labels": {"pod-template-hash": "5d"}},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [stored]}},
            "topologySpreadConstraints": [stored],
        },
    }
    spec = lower_pod.lower_pod(upper, PodOptions(owner=Owner("c", "vn")))["spec"]
    (lower,) = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    ours = {"key": "virtual-node.io/upper-cluster", "operator": "Exists"}
    expected = {"matchExpressions": [*selector["matchExpressions"], ours]}
    assert lower == {**term, "labelSelector": expected}
    assert spec["topologySpreadConstraints"] == [term]

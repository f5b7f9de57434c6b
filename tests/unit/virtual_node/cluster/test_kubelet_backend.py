"""The lower pod of an upper one is found, and no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from clusterset.admission import ClusterRules
from clusterset.config import Cluster
from controller_runtime.objects import Object, from_dict
from tests import objects
from virtual_node.cluster.kubelet_endpoints import CachedPods
from virtual_node.kubelet.base import Refusal
from virtual_node.translate.nodes.prometheus_text import PodNames


def _pod(namespace: str, name: str, uid: str, phase: str = "Running") -> Object:
    return from_dict(objects.pod(name, namespace=namespace, uid=uid, phase=phase))


class _Caches:
    """Upper pods, and lower pods by upper uid."""

    def __init__(self, *upper: Object, lower: dict[str, Object]) -> None:
        pods = {f"{pod.namespace}/{pod.name}": pod for pod in upper}
        store = SimpleNamespace(get=pods.get, list=lambda: list(pods.values()))
        self.upper = {"vn": SimpleNamespace(store=store)}
        self._lower = lower

    def lower_of(self, upper: Object) -> Object | None:
        return self._lower.get(upper.uid)


@pytest.fixture
def pods() -> CachedPods:
    """Two pods, one with a lower pod and one without."""
    caches: Any = _Caches(
        _pod("shop", "web", "u-1"),
        _pod("shop", "late", "u-2", phase="Pending"),
        lower={"u-1": _pod("t-shop", "web", "l-1")},
    )
    rules = ClusterRules(Cluster(name="east", kubeconfig=""), controllers=())
    context: Any = SimpleNamespace(name="east", lower="client", rules=rules)
    return CachedPods(context, caches, "vn")


def test_a_pod_is_found_where_it_runs(pods: CachedPods) -> None:
    """By name, and by uid where one is given."""
    for uid in (None, "u-1"):
        target = pods.resolve("shop", "web", uid=uid)
        assert target is not None
        assert (target.cluster, target.namespace, target.name) == ("east", "t-shop", "web")
    assert pods.resolve("shop", "web", uid="u-9") is None
    assert pods.resolve("other", "web") is None


def test_an_unmanaged_pod_of_the_same_name_is_not_found(pods: CachedPods) -> None:
    """Upper users must not get a shell in it."""
    with pytest.raises(Refusal) as refused:
        pods.resolve("shop", "late")
    assert (refused.value.status, refused.value.text) == (
        400,
        'pod "late" is not in cluster "east" now; see its events',
    )


def test_lower_pods_are_listed_and_counted(pods: CachedPods) -> None:
    """For the lists and for the metrics."""
    assert [pod["metadata"]["name"] for pod in pods.pods()] == ["web", "late"]
    assert [pod["metadata"]["name"] for pod in pods.running_pods()] == ["web"]
    for _ in ("first scrape", "second scrape"):
        assert pods.upper_pods_by_lower_name() == {
            ("t-shop", "web"): PodNames("shop", "web", "u-1", frozenset({"main"}))
        }

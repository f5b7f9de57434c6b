"""ResourceQuotas of lower namespaces, compared with the apiserver's admission (CheckRequest, core/pods.go)."""

from __future__ import annotations

from typing import Any

import pytest

from multi_scheduler.state import quotas
from multi_scheduler.state.quotas import Kind


def _quota(hard: dict[str, str], used: dict[str, str] | None = None, **spec: Any) -> quotas.Quota | None:
    status = {"hard": hard, "used": dict.fromkeys(hard, "0") | (used or {})}
    return quotas.read_quota({"metadata": {"name": "q", "namespace": "shop"}, "spec": spec, "status": status})


def _container(name: str = "c", requests: Any = None, limits: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": requests or {}, "limits": limits or {}}, **more}


def _refusal(
    hard: dict[str, str],
    used: dict[str, str] | None = None,
    *,
    spec: dict[str, Any],
    promised: dict[str, int] | None = None,
    priority_class: str = "",
    **scopes: Any,
) -> str:
    quota = _quota(hard, used, **scopes)
    charge = quotas.charge(spec, namespace="shop", priority_class=priority_class)
    if quota is None or not quota.covers(charge.kind):
        return ""
    return quota.objection(charge, promised or {})


ONE_CORE = {
    "containers": [_container(requests={"cpu": "1", "memory": "1Gi"}, limits={"cpu": "2", "memory": "1Gi"})]
}


@pytest.mark.parametrize(
    ("hard", "used", "expected"),
    [
        ({"pods": "2"}, {"pods": "1"}, ""),
        ({"pods": "2"}, {"pods": "2"}, "exceeded quota: q, requested: pods=1, used: pods=2, limited: pods=2"),
        ({"count/pods": "2"}, {"count/pods": "2"}, "requested: count/pods=1"),
        ({"cpu": "2"}, {"cpu": "1500m"}, "requested: cpu=1, used: cpu=1500m, limited: cpu=2"),
        ({"requests.cpu": "2"}, {"requests.cpu": "1"}, ""),
        ({"requests.cpu": "2"}, {"requests.cpu": "1001m"}, "requested: requests.cpu=1"),
        ({"limits.cpu": "2"}, {"limits.cpu": "1m"}, "requested: limits.cpu=2"),
        ({"memory": "1Gi"}, {"memory": "1"}, "used: memory=1, limited: memory=1Gi"),
        ({"limits.memory": "1Gi"}, {}, ""),
        ({"cpu": "1", "pods": "0"}, {"cpu": "1"}, "requested: cpu=1,pods=1, used: cpu=1,pods=0, limited: cpu=1,pods=0"),
        ({"services": "0", "persistentvolumeclaims": "0"}, {}, ""),
        ({"requests.storage": "0", "gold.storageclass.storage.k8s.io/requests.storage": "0"}, {}, ""),
        ({"requests.nvidia.com/gpu": "0"}, {}, ""),
        ({"requests.ephemeral-storage": "0"}, {}, ""),
    ],
)  # fmt: skip
def test_refuses_usage_above_the_hard_limit(hard, used, expected):
    """For the resources that the pod requests; the message is the apiserver's."""
    found = _refusal(hard, used, spec=ONE_CORE)
    assert expected in found if expected else found == ""


def test_exceeded_resource_refuses_only_pods_that_request_it():
    """A lowered gpu quota does not refuse pods without gpu."""
    hard, used = {"requests.nvidia.com/gpu": "1"}, {"requests.nvidia.com/gpu": "4"}
    assert _refusal(hard, used, spec=ONE_CORE) == ""
    gpu = {"containers": [_container(requests={"nvidia.com/gpu": "1"}, limits={"nvidia.com/gpu": "1"})]}
    assert "requests.nvidia.com/gpu=1" in _refusal(hard, used, spec=gpu)


def test_reserved_pods_count_in_addition_to_used():
    """They are named in the message, because the quota's numbers do not contain them."""
    found = _refusal({"pods": "3"}, {"pods": "1"}, spec=ONE_CORE, promised={"pods": 2})
    assert found == "exceeded quota: q, requested: pods=1, used: pods=1, reserved: pods=2, limited: pods=3"


@pytest.mark.parametrize(
    ("hard", "spec", "expected"),
    [
        ({"cpu": "9"}, {"containers": [_container("a"), _container("b")]}, "must specify cpu for: a,b"),
        (
            {"limits.cpu": "9", "requests.memory": "9Gi"},
            {"containers": [_container("a", requests={"cpu": "1"})]},
            "must specify limits.cpu for: a; requests.memory for: a",
        ),
        (
            {"cpu": "9"},
            {"containers": [_container("a", requests={"cpu": "0"})], "initContainers": [_container("i")]},
            "must specify cpu for: i",
        ),
        ({"requests.ephemeral-storage": "9Gi", "pods": "9"}, {"containers": [_container()]}, ""),
        ({"cpu": "9"}, {"containers": [_container()], "resources": {"requests": {"cpu": "1"}}}, ""),
    ],
    ids=["requests", "several", "init container", "only cpu and memory", "pod level"],
)
def test_cpu_and_memory_quotas_require_values_on_every_container(hard, spec, expected):
    """Zero is a value; pod-level resources count for all containers (KEP-2837)."""
    found = _refusal(hard, spec=spec)
    assert found == (f"failed quota: q: {expected}" if expected else "")


def test_charges_init_containers_sidecars_and_overhead_as_for_a_node():
    """Overhead is added only to limits that are set."""
    spec = {
        "initContainers": [
            _container("side", requests={"cpu": "1"}, limits={"cpu": "2"}, restartPolicy="Always"),
            _container("init", requests={"cpu": "4"}, limits={"cpu": "8"}),
        ],
        "containers": [_container("c", requests={"cpu": "2"}, limits={"cpu": "2"})],
        "overhead": {"cpu": "500m", "memory": "1Gi"},
    }
    usage = quotas.charge(spec, namespace="shop", priority_class="").usage
    assert usage == {
        "pods": 1, "count/pods": 1, "cpu": 5500, "requests.cpu": 5500, "limits.cpu": 10500,
        "memory": 1024**3, "requests.memory": 1024**3,
    }  # fmt: skip


def test_huge_pages_count_under_both_names_and_extended_resources_under_one():
    """Their limits equal their requests and are not counted separately."""
    asked = {"hugepages-2Mi": "4Mi", "nvidia.com/gpu": "2", "kubernetes.io/odd": "1"}
    usage = quotas.charge(
        {"containers": [_container(requests=asked, limits=asked)]}, namespace="shop", priority_class=""
    ).usage
    assert usage == {
        "pods": 1, "count/pods": 1, "hugepages-2Mi": 4 * 1024**2, "requests.hugepages-2Mi": 4 * 1024**2,
        "requests.nvidia.com/gpu": 2,
    }  # fmt: skip


BEST_EFFORT = {"containers": [_container()]}
LIMITED_IN_TIME = {**ONE_CORE, "activeDeadlineSeconds": 30}


@pytest.mark.parametrize(
    ("scopes", "spec", "priority_class", "covered"),
    [
        (["Terminating"], LIMITED_IN_TIME, "", True),
        (["Terminating"], ONE_CORE, "", False),
        (["NotTerminating"], LIMITED_IN_TIME, "", False),
        (["NotTerminating"], ONE_CORE, "", True),
        (["BestEffort"], BEST_EFFORT, "", True),
        (["BestEffort"], ONE_CORE, "", False),
        (["NotBestEffort"], ONE_CORE, "", True),
        (["NotBestEffort"], {"containers": [_container(requests={"cpu": "0"})]}, "", False),
        (["NotBestEffort"], {"containers": [_container(limits={"memory": "1"})]}, "", True),
        (["NotBestEffort"], {"containers": [_container(requests={"nvidia.com/gpu": "1"})]}, "", False),
        (["NotBestEffort"], {"initContainers": [_container(requests={"cpu": "1"})]}, "", True),
        (["NotBestEffort"], {**BEST_EFFORT, "resources": {"requests": {"cpu": "1"}}}, "", True),
        (["NotBestEffort", "Terminating"], ONE_CORE, "", False),
        (["PriorityClass"], ONE_CORE, "gold", True),
        (["PriorityClass"], ONE_CORE, "", False),
        (["CrossNamespacePodAffinity"], ONE_CORE, "", False),
        (["VolumeAttributesClass"], ONE_CORE, "", False),
    ],
)
def test_quota_covers_pods_that_match_all_its_scopes(scopes, spec, priority_class, covered):
    """Other pods are neither charged nor refused."""
    found = _refusal({"pods": "0"}, spec=spec, priority_class=priority_class, scopes=scopes)
    assert bool(found) is covered


@pytest.mark.parametrize(
    ("operator", "values", "without", "gold", "other"),
    [
        ("In", ["gold"], False, True, False),
        ("NotIn", ["gold"], True, False, True),
        ("Exists", [], False, True, True),
        ("DoesNotExist", [], True, False, False),
    ],
)
def test_priority_class_scope_uses_the_lower_class(operator, values, without, gold, other):
    """It works like a label selector over one label, which pods without a class do not have."""
    expression = {"scopeName": "PriorityClass", "operator": operator, "values": values}
    selector = {"matchExpressions": [expression]}
    for name, covered in (("", without), ("gold", gold), ("other", other)):
        found = _refusal({"pods": "0"}, spec=ONE_CORE, priority_class=name, scopeSelector=selector)
        assert bool(found) is covered, name


@pytest.mark.parametrize(
    ("term", "crosses"),
    [
        ({"topologyKey": "kubernetes.io/hostname", "namespaces": ["other"]}, True),
        ({"topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}}, True),
        ({"topologyKey": "kubernetes.io/hostname"}, False),
        ({"topologyKey": "zone", "namespaceSelector": {}}, False),
    ],
    ids=["by name", "by selector", "own namespace", "stays above"],
)
@pytest.mark.parametrize("is_required", [True, False], ids=["required", "preferred"])
def test_cross_namespace_scope_counts_only_mirrored_terms(term, crosses, is_required):
    """Terms with topology key hostname are mirrored; terms over the upper cluster's zones are not."""
    when = "required" if is_required else "preferred"
    terms = [term] if is_required else [{"weight": 1, "podAffinityTerm": term}]
    affinity = {"podAntiAffinity": {f"{when}DuringSchedulingIgnoredDuringExecution": terms}}
    charge = quotas.charge({**ONE_CORE, "affinity": affinity}, namespace="shop", priority_class="")
    assert charge.kind == Kind(
        is_terminating=False, is_best_effort=False, priority_class="", crosses_namespaces=crosses
    )


def test_uncounted_quota_refuses():
    """As in the apiserver, until the quota controller has counted."""
    quota = quotas.read_quota(
        {"metadata": {"name": "q", "namespace": "shop"}, "status": {"hard": {"pods": "9"}}}
    )
    assert quota is not None
    charge = quotas.charge(ONE_CORE, namespace="shop", priority_class="")
    assert quota.objection(charge, {}) == "status unknown for quota: q, resources: pods"


def test_ignores_quotas_without_pod_resources():
    """Also a quota that is not in force, because its status counts."""
    assert _quota({"services": "0"}) is None
    assert (
        quotas.read_quota({"metadata": {"name": "q", "namespace": "n"}, "spec": {"hard": {"pods": "0"}}})
        is None
    )

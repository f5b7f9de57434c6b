"""Capacity and metadata of a virtual node."""

from __future__ import annotations

import json
import re
import time
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model.autoscaling import Autoscaling, Shape
from clusterset.model.pod import pod_resources
from controller_runtime.apimachinery import quantity
from virtual_node.translate.base.metadata import recorded_labels
from virtual_node.translate.nodes import capacity as capacity_module
from virtual_node.translate.nodes import node as translate
from virtual_node.translate.nodes.capacity import Capacity


def lower_node(
    name: str,
    *,
    ready: bool = True,
    cordoned: bool = False,
    cpu: str = "4",
    labels: dict[str, str] | None = None,
    extended: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A lower node; half a cpu of it is not allocatable."""
    resources = {"cpu": cpu, "memory": "8Gi", "pods": "110", **(extended or {})}
    allocatable = {**resources, "cpu": f"{quantity.milli(cpu) - 500}m"}
    return {
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {
            "capacity": resources,
            "allocatable": allocatable,
            "conditions": [{"type": "Ready", "status": "True" if ready else "False"}],
            "nodeInfo": {"architecture": "arm64", "operatingSystem": "linux"},
        },
    }


def test_only_ready_and_schedulable_nodes_count():
    """NotReady and cordoned nodes add nothing."""
    capacity = Capacity()
    for node in (lower_node("a"), lower_node("b", ready=False), lower_node("c", cordoned=True)):
        capacity.upsert_node(node)
    assert capacity.totals()[0]["cpu"] == "4"
    assert (capacity.ready_nodes, capacity.running_nodes, capacity.selected_nodes) == (1, 2, 3)


def test_allocatable_is_reduced_by_unmanaged_pods():
    """It starts from the nodes' allocatable; an unmanaged pod takes its requests and one pod."""
    capacity = Capacity()
    capacity.upsert_node(lower_node("a", extended={"nvidia.com/gpu": "8"}))
    capacity.upsert_pod("p", "a", {"cpu": 1000, "nvidia.com/gpu": 3}, counts=True)
    total, allocatable = capacity.totals()
    assert (total["cpu"], total["nvidia.com/gpu"]) == ("4", "8")
    assert allocatable == {"cpu": "2500m", "memory": "8Gi", "nvidia.com/gpu": "5", "pods": "109"}
    capacity.upsert_pod("p", "a", {}, counts=False)
    assert capacity.totals()[1]["cpu"] == "3500m"


def test_a_pod_seen_before_its_node_counts():
    """Caches fill in any order."""
    capacity = Capacity()
    capacity.upsert_pod("p", "a", {"cpu": 500}, counts=True)
    capacity.upsert_node(lower_node("a"))
    assert capacity.totals()[1]["cpu"] == "3"


def test_an_overfull_node_does_not_reduce_the_others():
    """Never negative, and the limit is per node."""
    capacity = Capacity()
    capacity.upsert_node(lower_node("a"))
    capacity.upsert_node(lower_node("b"))
    capacity.upsert_pod("p", "a", {"cpu": 100_000}, counts=True)
    assert capacity.totals()[1]["cpu"] == "3500m"


@pytest.mark.parametrize(
    ("selector", "counted"),
    [({}, 1), ({"type": "virtual-kubelet"}, 1), ({"zone": "a"}, 1), ({"zone": "b"}, 0)],
)
def test_virtual_nodes_of_the_lower_cluster_count_only_if_selected(selector: dict[str, str], counted: int):
    """Otherwise clusters that mirror each other would double their capacities with every write of a status."""
    capacity = Capacity(node_selector=selector)
    for name, labels in (("real", {"zone": "a"}), ("vn", {"zone": "a", "type": "virtual-kubelet"})):
        capacity.upsert_node(lower_node(name, labels=labels))
    assert capacity.ready_nodes == counted


def test_selector_and_reserve():
    """Only selected nodes count, and the reserve is subtracted."""
    capacity = Capacity(node_selector={"pool": "gpu"}, reserve={"cpu": "10%", "memory": "2Gi"})
    capacity.upsert_node(lower_node("a", labels={"pool": "gpu"}))
    capacity.upsert_node(lower_node("b", labels={"pool": "cpu"}))
    assert capacity.totals()[1] == {"cpu": "3150m", "memory": "6Gi", "pods": "110"}
    capacity.upsert_node(lower_node("a", labels={"pool": "other"}))
    assert capacity.totals() == ({}, {})


def test_nodes_that_can_be_added_count():
    """While such a node starts, the sum stays the same. The reserve is subtracted from the sum."""
    shape = Shape(name="s", resources={"cpu": "2", "memory": "4Gi"}, labels={"size": "s"})
    capacity = Capacity(
        node_selector={"pool": "cpu"},
        reserve={"cpu": "1"},
        autoscaling=Autoscaling(max_nodes=3, shapes=[shape]),
    )
    assert capacity.totals()[1] == {"cpu": "5", "memory": "12Gi", "pods": "330"}
    capacity.upsert_node(lower_node("fixed", labels={"pool": "cpu"}))
    for ready in (False, True):
        capacity.upsert_node(lower_node("new", cpu="2500m", ready=ready, labels={"pool": "cpu", "size": "s"}))
        assert capacity.totals()[1]["cpu"] == "8500m"


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from("abc"), st.booleans(), st.integers(1, 8)),
        st.tuples(st.just("no-node"), st.sampled_from("abc")),
        st.tuples(
            st.just("pod"),
            st.sampled_from("xyz"),
            st.sampled_from("abc"),
            st.integers(0, 3000),
            st.booleans(),
        ),
        st.tuples(st.just("no-pod"), st.sampled_from("xyz")),
    ),
    max_size=30,
)


@given(STEPS)
def test_incremental_sums_equal_recomputed_ones(steps):
    """After any sequence of changes."""
    kept, nodes, pods = Capacity(), {}, {}
    for step in steps:
        match step:
            case ("node", name, ready, cpu):
                nodes[name] = lower_node(name, ready=ready, cpu=str(cpu))
                if cpu % 2:
                    nodes[name]["status"]["allocatable"]["example.com/gpu"] = str(cpu)
                kept.upsert_node(nodes[name])
            case ("no-node", name):
                nodes.pop(name, None)
                kept.remove_node(name)
            case ("pod", uid, name, cpu, counts):
                requests = {"cpu": cpu, "example.com/gpu": cpu % 3, "example.com/other": 1}
                if counts:
                    pods[uid] = (name, requests)
                else:
                    pods.pop(uid, None)
                kept.upsert_pod(uid, name, requests, counts=counts)
            case ("no-pod", uid):
                pods.pop(uid, None)
                kept.remove_pod(uid)
    fresh = Capacity()
    for node in nodes.values():
        fresh.upsert_node(node)
    for uid, (name, requests) in pods.items():
        fresh.upsert_pod(uid, name, requests, counts=True)
    assert kept.totals() == fresh.totals()
    assert all(not value.startswith("-") for sums in kept.totals() for value in sums.values())


def test_resources_of_a_hostile_node_are_bounded():
    """Thousands of devices, invalid names and amounts; the resources of Kubernetes stay."""
    capacity = Capacity()
    for number in range(20):
        body = lower_node(f"n{number}")
        odd = {"a b": "1", "x/": "1", "huge": "9" * 100, "negative": "-5", "odd": {"a": 1}, "list": "1,2"}
        devices = {f"a.example.com/d{number}-{device}": "1" for device in range(1000)}
        for field in ("capacity", "allocatable"):
            body["status"][field] = {**body["status"][field], "big": "1e18", **odd, **devices}
        capacity.upsert_node(body)
    for sums in capacity.totals():
        assert len(sums) == 100
        assert {"cpu", "memory", "pods", "negative", "big"} <= sums.keys()
        assert {"a b", "x/", "huge", "odd", "list"}.isdisjoint(sums)
        assert (sums["negative"], sums["big"]) == ("0", str(2**63 - 1))


def test_the_resources_of_all_nodes_are_bounded():
    """The sums are read four times per second; 40,000 nodes with 64 resources each took 2.5 s each time."""
    capacity = Capacity()
    for number in range(100):
        body = lower_node(f"n{number}")
        body["status"]["allocatable"] = {f"a.example.com/d{number}-{device}": "1" for device in range(64)}
        capacity.upsert_node(body)
    assert 1000 <= len(capacity._allocatable.sums) < 1064
    for number in range(100):
        capacity.remove_node(f"n{number}")
    assert capacity.totals() == ({}, {})


def test_nodes_beyond_a_limit_do_not_count(monkeypatch):
    """A hostile cluster could fill the memory with them. A node that is removed makes room."""
    monkeypatch.setattr(capacity_module, "_MOST_NODES", 2)
    capacity = Capacity()
    for name in ("a", "b", "c", "a"):
        capacity.upsert_node(lower_node(name))
    assert (capacity.selected_nodes, capacity.totals()[0]["pods"]) == (2, "220")
    capacity.remove_node("a")
    capacity.upsert_node(lower_node("c"))
    assert capacity.foreign().keys() == {"b", "c"}


def test_a_node_that_is_selected_and_not_again_and_again_costs_little():
    """Whatever the number of pods: a hostile cluster sends thousands of such changes per second, in small events."""
    capacity = Capacity(node_selector={"pool": "a"})
    for number in range(20_000):
        capacity.upsert_pod(str(number), "n", {"cpu": 1}, counts=True)
    started = time.thread_time()
    for _ in range(1000):
        capacity.upsert_node(lower_node("n", cpu="64", labels={"pool": "a"}))
        capacity.upsert_node(lower_node("n", cpu="64", labels={"pool": "b"}))
    assert time.thread_time() - started < 1
    capacity.upsert_node(lower_node("n", cpu="64", labels={"pool": "a"}))
    assert capacity.totals()[1]["cpu"] == "43500m"


def test_properties_of_a_hostile_node_are_left_out():
    """A label with another value would make the API server refuse the virtual node."""
    body = lower_node(
        "n", labels={"topology.kubernetes.io/zone": "a b", "topology.kubernetes.io/region": "r" * 64}
    )
    body["status"]["nodeInfo"] = {
        "osImage": "x" * 10_000, "kernelVersion": ["6"], "operatingSystem": "linux\n", "architecture": "a b",
        "containerRuntimeVersion": "containerd://2", "x": "y",
    }  # fmt: skip
    capacity = Capacity()
    capacity.upsert_node(body)
    assert capacity.nodes()[0]["nodeInfo"] == {"containerRuntimeVersion": "containerd://2"}
    node = build(lower_nodes=capacity.nodes())
    assert {"topology.kubernetes.io/zone", "topology.kubernetes.io/region"}.isdisjoint(
        node["metadata"]["labels"]
    )
    assert node["metadata"]["labels"]["kubernetes.io/os"] == "linux"


def test_a_long_error_is_cut_in_the_condition():
    found = translate.node_conditions(
        ready=False, reason="R", message="é" * 4096, now=datetime(2026, 1, 1, tzinfo=UTC), previous=[]
    )
    assert 1000 < len(found[0]["message"].encode()) <= 1024


def build(**changes: Any) -> dict[str, Any]:
    """Return a virtual node's Node object."""
    conditions = translate.node_conditions(
        ready=True, reason="R", message="m", now=datetime(2026, 1, 1, tzinfo=UTC), previous=[]
    )
    given_: dict[str, Any] = {
        "name": "vn",
        "cluster_name": "tokyo",
        "labels": {"clusterID": "tokyo"},
        "taints": [],
        "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
        "kubelet_port": 10250,
        "lower_nodes": [
            {
                "labels": {"topology.kubernetes.io/zone": "z1"},
                "nodeInfo": {"architecture": "arm64"},
                "declaredFeatures": frozenset(),
            }
        ],
        "kubelet_version": "v1.34.4",
        "release": "",
        "capacity": {"pods": "10000"},
        "allocatable": {"pods": "10000"},
        "conditions": conditions,
        "upper_id": "upper",
    }
    return translate.node_object(**{**given_, **changes})


def test_the_node_has_properties_of_the_lower_nodes():
    """Architecture and a common zone; the rest is a virtual node's."""
    labels = build()["metadata"]["labels"]
    assert labels["kubernetes.io/arch"] == "arm64"
    assert labels["topology.kubernetes.io/zone"] == "z1"
    assert labels["type"] == "virtual-kubelet"
    assert labels["kubernetes.io/hostname"] == "vn"


_ZONE = "topology.kubernetes.io/zone"


def _in_zones(*zones: str) -> list[dict[str, Any]]:
    """Return lower nodes in these zones."""
    found = [{_ZONE: zone} for zone in zones]
    return [{"labels": labels, "nodeInfo": {}, "declaredFeatures": frozenset()} for labels in found]


@pytest.mark.parametrize(
    ("zones", "config", "by_user", "expected"),
    [
        (("z1", "z2"), {}, "", None),  # a node of another zone was added
        (("z2",), {}, "", "z2"),
        ((), {}, "", "z1"),  # the lower nodes have not been listed yet
        (("z1", "z2"), {}, "mine", "mine"),
        (("z1", "z2"), {_ZONE: "z9"}, "", "z9"),
    ],
)
def test_the_zone_is_removed_when_lower_nodes_no_longer_share_it(zones, config, by_user, expected):
    """Pods of another zone would get it, and nodes of both zones would count as one."""
    node = build(lower_nodes=_in_zones("z1"))
    if by_user:
        node["metadata"]["labels"][_ZONE] = by_user
    desired = build(
        lower_nodes=_in_zones(*zones), labels=config, zones=translate.recorded_zones(node["metadata"])
    )
    patch = translate.node_metadata_patch(node, desired) or {"metadata": {}}
    change = patch["metadata"].get("labels") or {}
    assert change.get(_ZONE, node["metadata"]["labels"][_ZONE]) == expected


def test_a_zone_that_is_removed_from_the_configuration_goes_without_lower_nodes():
    """A lower cluster that an autoscaler has emptied has none for days."""
    node = build(lower_nodes=(), labels={_ZONE: "z9"})
    desired = build(lower_nodes=(), zones=translate.recorded_zones(node["metadata"]))
    patch = translate.node_metadata_patch(node, desired)
    assert patch is not None
    assert patch["metadata"]["labels"][_ZONE] is None


def test_the_release_is_a_label_and_the_kubelets_version_the_lower_clusters():
    """Characters that a label may not have are replaced, and an unknown release is left out."""
    node = build(release="1.2.0+dirty")
    assert node["metadata"]["labels"]["virtual-node.io/version"] == "1.2.0-dirty"
    assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.34.4"
    assert "virtual-node.io/version" not in build()["metadata"]["labels"]
    patch = translate.node_metadata_patch(build(release="1.1.0"), node)
    assert patch == {"metadata": {"labels": {"virtual-node.io/version": "1.2.0-dirty"}}}


def test_the_node_has_the_identities_of_a_machine():
    """They are stable, and differ between virtual nodes and upper clusters, so that readers do not merge Nodes."""

    def identities(**changes: str) -> tuple[str, ...]:
        info = build(**changes)["status"]["nodeInfo"]
        return info["machineID"], info["systemUUID"], info["bootID"]

    machine, system, boot = identities()
    assert re.fullmatch(r"[0-9a-f]{32}", machine)
    assert (str(uuid.UUID(system)), str(uuid.UUID(boot))) == (system, boot)
    assert identities(kubelet_version="v1.36.0", cluster_name="osaka") == identities()
    different = [*identities(), *identities(name="vn2"), *identities(upper_id="other")]
    assert len(set(different)) == len(different)


@pytest.mark.parametrize(
    ("there", "wanted", "change"),
    [
        ("", "", None),
        ("", "gce://null/null/null", "gce://null/null/null"),
        ("aws:///a/i-1", "gce://null/null/null", None),
        ("aws:///a/i-1", "", None),
    ],
    ids=["none", "set later", "the API server refuses a change", "set by a cloud controller"],
)
def test_a_provider_id_is_set_only_once(there, wanted, change):
    patch = translate.node_metadata_patch(build(provider_id=there), build(provider_id=wanted))
    assert patch == (change and {"spec": {"providerID": change}})


EXCLUDED = "node.kubernetes.io/exclude-from-external-load-balancers"


@pytest.mark.parametrize(
    ("there", "wanted", "change"),
    [
        (None, "true", "true"),
        ("true", "true", ...),
        ("by-a-user", "true", ...),
        ("", "true", ...),
        ("true", None, None),
        ("by-a-user", None, ...),
        ("true", "false", "false"),
        ("by-a-user", "false", ...),
    ],
    ids=[
        "earlier release, or removed",
        "same",
        "user's value",
        "user's empty value",
        "off",
        "off, user's value",
        "configured",
        "configured, user's value",
    ],
)
def test_the_label_against_load_balancers_keeps_a_users_value(there, wanted, change):
    """Most load balancers check only its presence. Recent cloud controllers include a Node with the value false."""
    before = build(labels={EXCLUDED: "true"} if there is not None else {})
    if there is not None:
        before["metadata"]["labels"][EXCLUDED] = there
    patch = translate.node_metadata_patch(before, build(labels={EXCLUDED: wanted} if wanted else {}))
    labels = ((patch or {}).get("metadata") or {}).get("labels") or {}
    assert labels == ({} if change is ... else {EXCLUDED: change})


def test_annotation_of_provisioning_follows_the_configuration():
    """The descheduler reads it, so it is removed with the setting."""
    before, after = build(), build(provision_seconds=600.0)
    key = "virtual-node.io/provision-seconds"
    assert translate.node_metadata_patch(before, after) == {"metadata": {"annotations": {key: "600"}}}
    assert translate.node_metadata_patch(after, before) == {"metadata": {"annotations": {key: None}}}
    assert translate.node_metadata_patch(after, after) is None


@pytest.mark.parametrize(
    ("labels", "there", "change"),
    [
        ({"team": "a"}, {}, None),
        ({}, {}, {"team": None}),
        ({"team": "b"}, {}, {"team": "b"}),
        ({}, {"team": "theirs"}, {}),
        ({"team": "a"}, {"kept": "by others"}, None),
    ],
    ids=["unchanged", "removed", "changed", "removed, but others changed it", "label of others"],
)
def test_label_removed_from_the_configuration_is_removed_from_the_node(labels, there, change):
    """Only labels that the configuration set before, with the value it set."""
    before = build(labels={"team": "a"})
    before["metadata"]["labels"] |= there
    patch = translate.node_metadata_patch(before, build(labels=labels))
    if change is None:
        assert patch is None
    else:
        assert patch is not None
        assert patch["metadata"].get("labels", {}) == change
        assert list(patch["metadata"]["annotations"]) == ["virtual-node.io/applied"]


@pytest.mark.parametrize("record", [None, "", "{", "[]", '{"labels":[]}', "[" * 100_000])
def test_node_without_a_valid_annotation_keeps_its_labels(record):
    """Registered by an earlier release, or the annotation was changed: others may have set them."""
    before = build(labels={"team": "a"})
    before["metadata"]["annotations"] = {} if record is None else {"virtual-node.io/applied": record}
    patch = translate.node_metadata_patch(before, build(labels={}))
    assert patch is not None
    assert "labels" not in patch["metadata"]
    assert recorded_labels(patch["metadata"]) == {_ZONE: "z1"}


_OURS = {"key": "virtual-kubelet.io/provider", "value": "k8s", "effect": "NoSchedule"}
_GPU = {"key": "gpu", "value": "", "effect": "NoSchedule"}
_CORDON = {
    "key": "node.kubernetes.io/unschedulable",
    "effect": "NoSchedule",
    "timeAdded": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("recorded", "present", "wanted", "expected"),
    [
        ([_OURS], [_OURS, _CORDON], [_OURS], None),
        ([_OURS], [_OURS, _CORDON], [], [_CORDON]),
        ([_OURS], [_OURS, _CORDON], [_OURS, _GPU], [_OURS, _CORDON, _GPU]),
        ([_OURS], [_OURS], [{**_OURS, "value": "v"}], [{**_OURS, "value": "v"}]),
        ([_OURS], [_CORDON], [_OURS], None),
        ([_OURS], [{**_OURS, "value": "theirs"}, _CORDON], [], None),
        ([_OURS], [_OURS, {"key": "gpu", "effect": "NoSchedule"}], [_OURS, _GPU], None),
        (None, [_OURS], [], None),
        ("malformed", [_OURS], [], None),
        (["malformed"], [_OURS], [_OURS, _GPU], [_OURS, _GPU]),
    ],
    ids=[
        "unchanged", "removed", "added", "another value", "a user removed it", "a user changed it", "a user added it",
        "of an earlier release", "no list", "no taints",
    ],
)  # fmt: skip
def test_taints_follow_the_configuration_and_keep_those_of_others(recorded, present, wanted, expected):
    """A kubelet writes them once. Here, users edit a file, as they do for labels, which follow."""
    current = build(taints=[])
    record = {"labels": {_ZONE: "z1"}, **({} if recorded is None else {"taints": recorded})}
    current["metadata"]["annotations"]["virtual-node.io/applied"] = json.dumps(record)
    current["metadata"]["resourceVersion"] = "7"
    current["spec"]["taints"] = present
    desired = build(taints=wanted)
    patch = translate.node_metadata_patch(current, desired) or {}
    assert patch.get("spec", {}).get("taints") == expected
    assert (patch.get("metadata", {}).get("resourceVersion") == "7") is (expected is not None)
    if expected is not None:
        after = {**desired, "spec": {"taints": expected}}
        assert translate.node_metadata_patch(after, desired) is None


def test_reserved_labels_win_over_configured_ones():
    before = build(labels={"kubernetes.io/arch": "riscv64"})
    patch = translate.node_metadata_patch(before, build(labels={}))
    assert patch is not None
    assert patch["metadata"]["labels"] == {"kubernetes.io/arch": "arm64"}


def test_transition_times_change_with_the_status_only():
    """A heartbeat is no transition."""
    first = translate.node_conditions(
        ready=True, reason="R", message="m", now=datetime(2026, 1, 1, tzinfo=UTC), previous=[]
    )
    later = datetime(2026, 1, 2, tzinfo=UTC)
    same = translate.node_conditions(ready=True, reason="R", message="m", now=later, previous=first)
    other = translate.node_conditions(ready=False, reason="X", message="m", now=later, previous=first)
    assert same[0]["lastTransitionTime"] == first[0]["lastTransitionTime"]
    assert same[0]["lastHeartbeatTime"] != first[0]["lastHeartbeatTime"]
    assert other[0]["lastTransitionTime"] == "2026-01-02T00:00:00Z"


def test_status_patch_has_only_differences():
    """Equal quantities in another format are equal; a heartbeat has only the conditions; others' conditions stay."""
    current, desired = build(), build()
    current["status"]["capacity"] = {"pods": "10k"}
    assert translate.node_status_patch(current, desired, heartbeat=False) is None
    beat = translate.node_status_patch(current, desired, heartbeat=True)
    assert beat is not None
    assert set(beat["status"]) == {"conditions"}
    current["status"]["allocatable"] = {"pods": "1", "gone.io/x": "1"}
    patch = translate.node_status_patch(current, desired, heartbeat=False)
    assert patch is not None
    assert patch["status"]["allocatable"] == {"pods": "10000", "gone.io/x": None}


def test_the_node_declares_the_features_of_the_lower_nodes_that_count():
    """Sorted, as the API server requires; without features the field is absent, as the API server returns it."""
    capacity = Capacity()
    for name, cordoned, features in (
        ("a", False, ["B", "A"]),
        ("b", False, ["A", "B", "C"]),
        ("c", True, []),
    ):
        node = lower_node(name, cordoned=cordoned)
        node["status"]["declaredFeatures"] = features
        capacity.upsert_node(node)
    made = build(lower_nodes=capacity.nodes())["status"]
    assert made["declaredFeatures"] == ["A", "B", "ExtendWebSocketsToKubelet"]
    assert "declaredFeatures" not in build(kubelet_version="v1.30.0")["status"]


@pytest.mark.parametrize(
    ("there", "wanted", "not_stored", "heartbeat", "sent"),
    [
        (["A"], ["A"], None, True, None),
        ([], ["A"], None, False, ["A"]),
        (["A", "B"], ["A"], None, False, ["A"]),
        (["A"], [], None, False, None),
        ([], ["A"], ["A"], False, "nothing"),
        ([], ["A"], ["A"], True, ["A"]),
        ([], ["A", "B"], ["A"], False, ["A", "B"]),
    ],
    ids=[
        "same",
        "new",
        "fewer",
        "none",
        "not known above",
        "not known at the last heartbeat",
        "not known, and changed",
    ],
)
def test_declared_features_are_sent_if_they_differ(there, wanted, not_stored, heartbeat, sent):
    """To an upper API server that does not know the field, only with heartbeats: it may have been upgraded."""
    current, desired = build(), build()
    current["status"]["declaredFeatures"], desired["status"]["declaredFeatures"] = there, wanted or None
    patch = translate.node_status_patch(current, desired, heartbeat=heartbeat, not_stored=not_stored)
    change = (patch or {"status": {}})["status"]
    assert change.get("declaredFeatures", "nothing") == ("nothing" if there == wanted else sent)


@pytest.mark.parametrize(
    ("text", "milli", "amount"),
    [
        ("1", 1000, 1),
        ("100m", 100, 1),
        ("1.5", 1500, 2),
        ("2Ki", 2_048_000, 2048),
        ("1e3", 1_000_000, 1000),
        ("0", 0, 0),
        (".5", 500, 1),
        ("1k", 1_000_000, 1000),
        ("1n", 1, 1),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text, milli, amount):
    """Suffixes, exponents and fractions, rounded up."""
    assert (quantity.milli(text), quantity.amount(text)) == (milli, amount)


@pytest.mark.parametrize("text", ["", "1x", "Ki", "1 Gi", "--1", "1e", "NaN"])
def test_an_invalid_quantity_is_refused(text):
    """It is an error, not zero."""
    with pytest.raises(ValueError, match="quantity"):
        quantity.milli(text)


@given(st.integers(0, 10**15), st.sampled_from(["cpu", "memory", "nvidia.com/gpu"]))
def test_rendered_quantities_parse_to_the_same_value(count, resource):
    assert quantity.of(resource, quantity.render(resource, count)) == count


def test_requests_are_counted_as_by_the_scheduler():
    """Containers add up, init containers peak, sidecars run in parallel, overhead is added."""

    def container(cpu: str, **more: Any) -> dict[str, Any]:
        return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **more}

    spec = {
        "containers": [container("1"), container("500m")],
        "initContainers": [container("4"), container("1", restartPolicy="Always"), container("2")],
        "overhead": {"cpu": "100m"},
    }
    # The first init container runs before the sidecar: 4 alone; the last in parallel: 3; then 1.5 + 1
    # permanently.
    assert pod_resources.pod_requests(spec) == {"cpu": 4100}
    assert pod_resources.pod_requests(
        {"containers": [container("1")], "resources": {"requests": {"cpu": "3"}}}
    ) == {"cpu": 3000}

"""Endpoints in the lower cluster: table and property tests of the translation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.translate.copying import lower_copy, patch, view_of
from virtual_node.translate import endpoints
from virtual_node.translate.base.view import LowerPod

TRIGGERED = "endpoints.kubernetes.io/last-change-trigger-time"
CLUSTER = "upper-1"
PORTS = [{"name": "", "port": 8080, "protocol": "TCP"}]


def endpoint(ip, *, uid="", **more):
    """Return an upper endpoint on a virtual node."""
    target = {"kind": "Pod", "namespace": "shop", "name": f"pod-{uid}", "uid": uid}
    return {
        "addresses": [ip],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": "vn-1",
        "zone": "upper-zone",
        "hints": {"forZones": [{"name": "upper-zone"}]},
        "targetRef": target,
        **more,
    }


def piece(*found, name="web-abcde", uid="s-1", **more):
    """Return an upper EndpointSlice."""
    return {
        "metadata": {
            "name": name,
            "namespace": "shop",
            "uid": uid,
            "labels": {
                endpoints.LABEL_SERVICE: "web",
                endpoints.LABEL_MANAGED_BY: "endpointslice-controller.k8s.io",
                "service.kubernetes.io/headless": "",
            },
            "annotations": {TRIGGERED: "2026-01-01T00:00:00Z"},
            "ownerReferences": [{"kind": "Service"}],
        },
        "addressType": "IPv4",
        "endpoints": list(found),
        "ports": PORTS,
        **more,
    }


def find(_namespace, name, uid):
    """Return the only pod of this cluster, ``mine``."""
    if "mine" in (uid, name.removeprefix("pod-")):
        return LowerPod("x-shop", "pod-mine", "l-1", "node-1")
    return None


def below(source):
    """Return the lower slice of an upper one."""
    return lower_copy("EndpointSlice", source, view_of("x-shop", find_pod=find))


def test_a_pod_of_this_cluster_has_its_lower_reference():
    """And node; the zone and hints of the upper cluster are dropped."""
    (found,) = below(piece(endpoint("10.1.0.1", uid="mine", hostname="db-0")))["endpoints"]
    assert found == {
        "addresses": ["10.1.0.1"],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "hostname": "db-0",
        "targetRef": {"kind": "Pod", "namespace": "x-shop", "name": "pod-mine", "uid": "l-1"},
        "nodeName": "node-1",
    }


def test_pod_of_another_namespace_is_not_named():
    """Users can write slices, which must not reveal where another user's pod runs."""
    target = {"kind": "Pod", "namespace": "victim", "name": "pod-mine", "uid": "mine"}
    (found,) = below(piece(endpoint("10.1.0.1", targetRef=target)))["endpoints"]
    assert not {"targetRef", "nodeName"} & found.keys()


@pytest.mark.parametrize(("ip", "is_named"), [("10.2.0.1", True), ("10.2.0.2", False), ("10.3.0.1", False)])
def test_pod_of_another_process_is_named_if_it_has_the_address(ip, is_named):
    """Users of the lower cluster can write its labels, but a pod cannot choose its address."""
    pod = LowerPod(
        "x-shop", "pod-theirs", "l-2", "node-2", is_ready=False, addresses=frozenset({"10.2.0.1", "fd00::1"})
    )
    view = view_of("x-shop", find_pod=lambda *_: pod)
    (found,) = lower_copy("EndpointSlice", piece(endpoint(ip, uid="theirs")), view)["endpoints"]
    assert ("targetRef" in found, found.get("nodeName")) == (is_named, "node-2" if is_named else None)
    assert found["conditions"]["ready"] is not is_named


_READY = {"ready": True, "serving": True, "terminating": False}
_UNREADY = {"ready": False, "serving": False, "terminating": False}
_DRAINING = {"ready": False, "serving": True, "terminating": True}


@pytest.mark.parametrize(
    ("upper", "is_ready", "is_terminating", "publishes", "lower"),
    [
        (_UNREADY, True, False, False, _READY),  # the process was away, so the upper condition is stale
        (_READY, False, False, False, _UNREADY),
        (_READY, True, False, False, _READY),
        ({}, True, False, False, _READY),
        ({"ready": False}, True, False, False, _READY),
        (_READY, True, True, False, _DRAINING),  # being deleted in the lower cluster
        (_DRAINING, True, False, False, _DRAINING),  # being deleted in the upper cluster
        (_READY, False, True, False, {**_DRAINING, "serving": False}),
        ({**_UNREADY, "ready": True}, False, False, True, {**_UNREADY, "ready": True}),
        ({**_DRAINING, "ready": True}, True, True, True, {**_DRAINING, "ready": True}),
        (_UNREADY, None, False, False, _UNREADY),  # unknown
        (_READY, None, False, False, _READY),
    ],
)
def test_lower_pod_decides_the_conditions(upper, is_ready, is_terminating, publishes, lower):
    """As in the EndpointSlice controller; with ``publishNotReadyAddresses`` every endpoint is ready."""
    pod = LowerPod("x-shop", "pod-mine", "l-1", "node-1", is_ready=is_ready, is_terminating=is_terminating)
    view = view_of("x-shop", find_pod=lambda *_: pod, publishes_unready=lambda *_: publishes)
    source = piece(endpoint("10.1.0.1", uid="mine", conditions=upper))
    (found,) = lower_copy("EndpointSlice", source, view)["endpoints"]
    assert found["conditions"] == lower


@pytest.mark.parametrize("manager", ["endpointslicemirroring-controller.k8s.io", "operator.example.com", ""])
def test_conditions_of_other_managers_are_copied(manager):
    """They are not computed from pods: an operator may publish only its leader as ready."""
    pod = LowerPod("x-shop", "pod-mine", "l-1", "node-1", is_ready=True)
    source = piece(endpoint("10.1.0.1", uid="mine", conditions=_UNREADY))
    source["metadata"]["labels"][endpoints.LABEL_MANAGED_BY] = manager
    view = view_of("x-shop", find_pod=lambda *_: pod)
    (found,) = lower_copy("EndpointSlice", source, view)["endpoints"]
    assert found["conditions"] == _UNREADY
    assert not [*endpoints.pods_of(from_dict(source))]


@pytest.mark.parametrize(
    ("found", "uids"),
    [
        (
            [endpoint("10.1.0.1", uid="a"), {"addresses": ["10.1.0.2"]}, endpoint("10.1.0.3", uid="b")],
            ["a", "b"],
        ),
        ([{"addresses": ["10.1.0.1"], "targetRef": {"kind": "Pod", "name": "web"}}], []),
        ([{"targetRef": None}, {"targetRef": {"uid": "a"}}], ["a"]),
        (None, []),
        ("malformed", []),
        ([["malformed"]], []),
        ([{"targetRef": {"uid": ["malformed"]}}], []),
    ],
)
def test_slice_is_indexed_by_its_pods(found, uids):
    """A malformed slice has none, because an error would stop the cache."""
    assert [*endpoints.pods_of(from_dict({**piece(), "endpoints": found}))] == uids


def test_a_pod_of_another_cluster_is_an_address():
    """Without a reference and a node, which kube-proxy would look up here."""
    (found,) = below(piece(endpoint("10.2.0.1", uid="theirs")))["endpoints"]
    assert set(found) == {"addresses", "conditions"}


def test_a_reference_to_another_kind_is_dropped():
    """Only pods are translated."""
    (found,) = below(piece(endpoint("10.2.0.1", targetRef={"kind": "Node", "name": "pod-mine"})))["endpoints"]
    assert "targetRef" not in found


def test_a_pod_without_a_node_yet_has_none():
    """An empty node name is refused by servers."""
    view = view_of(find_pod=lambda *_: LowerPod("n", "p", "l", ""))
    found = lower_copy("EndpointSlice", piece(endpoint("10.1.0.1", uid="mine")), view)
    assert "nodeName" not in found["endpoints"][0]


def test_labels_mark_the_owner_and_the_service():
    """Other controllers ignore the slice, kube-proxy and this controller find it."""
    metadata = below(piece())["metadata"]
    assert metadata["labels"] == {
        endpoints.LABEL_SERVICE: "web",
        endpoints.LABEL_MANAGED_BY: "virtual-node.io",
        "service.kubernetes.io/headless": "",
        names.LABEL_UPPER_CLUSTER: CLUSTER,
        names.LABEL_UPPER_UID: "s-1",
    }
    assert TRIGGERED not in metadata["annotations"]
    assert "ownerReferences" not in metadata


def test_names_are_stable_and_unique():
    """Two upper clusters may have a slice of the same name, and the lower cluster has its own."""
    ours = endpoints.slice_name("web", "s-1", "upper-1")
    assert ours == endpoints.slice_name("web", "s-1", "upper-1")
    assert ours.startswith("web-")
    assert (
        len(
            {
                ours,
                endpoints.slice_name("web", "s-1", "upper-2"),
                endpoints.slice_name("web", "s-2", "upper-1"),
            }
        )
        == 3
    )


@pytest.mark.parametrize("ports", [None, []])
def test_a_slice_without_ports_or_endpoints_is_empty(ports):
    """Servers send null for both."""
    found = below(piece(endpoints=None, ports=ports))
    assert (found["endpoints"], found["ports"]) == ([], [])


def test_a_current_slice_needs_no_patch():
    """An empty port name equals a missing one."""
    wanted = below(piece(endpoint("10.1.0.1", uid="mine")))
    current = {**wanted, "ports": [{"port": 8080, "protocol": "TCP"}]}
    assert patch("EndpointSlice", current, wanted) is None


@given(st.lists(st.sampled_from(["10.1.0.1", "10.1.0.2", "10.1.0.3"]), unique=True))
def test_any_change_of_endpoints_is_one_patch(ips):
    """With exactly the new list."""
    current = below(piece(endpoint("10.1.0.1")))
    wanted = below(piece(*(endpoint(ip) for ip in ips)))
    change = patch("EndpointSlice", current, wanted)
    if ips == ["10.1.0.1"]:
        assert change is None
    else:
        assert change == {"endpoints": wanted["endpoints"]}

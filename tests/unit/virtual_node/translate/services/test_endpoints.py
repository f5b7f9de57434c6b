"""Endpoints in the lower cluster: table and property tests of the translation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from tests.unit.virtual_node.translate.copying import lower_copy, patch, view_of
from virtual_node.translate.base.view import LowerPod
from virtual_node.translate.services import endpoints

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


@pytest.mark.parametrize(
    ("ip", "uid", "stays"),
    [("10.2.0.1", "theirs", True), ("10.2.0.2", "theirs", False), ("10.2.0.1", "x", False)],
)
def test_entries_of_another_process_stay(ip, uid, stays):
    """It has the same lower cluster, and knows the lower pod with that address and name."""
    of_theirs = LowerPod("x-shop", "pod-theirs", "l-2", "node-2")
    view = view_of("x-shop", find_pod=lambda *_: of_theirs)
    written = lower_copy("EndpointSlice", piece(endpoint("10.2.0.1", uid="theirs")), view)
    upper = piece(endpoint(ip, uid=uid))
    (found,) = endpoints.with_known_pods(written, below(upper), upper)["endpoints"]
    assert ("targetRef" in found, found.get("nodeName")) == (stays, "node-2" if stays else None)


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

"""The lower Service of the upper API server is no copy of an upper Service."""

from __future__ import annotations

from typing import Any

import pytest

from clusterset.model import names
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.translate.copying import view_of
from virtual_node.translate.kinds import ENDPOINT_SLICES, SERVICES
from virtual_node.translate.pods import api_server

CLUSTER = "upper-1"
SERVICE = api_server.service(CLUSTER, namespace="lower-shop", upper_namespace="shop")
SLICE = api_server.endpoint_slice(
    CLUSTER, namespace="lower-shop", upper_namespace="shop", ips=["192.0.2.1"], port=6443
)


@pytest.mark.parametrize(("kind", "body"), [(SERVICES, SERVICE), (ENDPOINT_SLICES, SLICE)])
def test_controllers_of_copies_ignore_it(kind, body):
    """They would delete it, because it has no upper object; ``inspect`` would report it."""
    found = from_dict(body)
    assert kind.upper_key(found) == ()
    assert not kind.is_copy_of(found, f"shop/{found.name}", CLUSTER)
    assert not kind.is_marked(found.labels)
    assert api_server.is_ours(found, CLUSTER)
    assert not api_server.is_ours(found, "upper-2")


@pytest.mark.parametrize(
    ("name", "label"), [("web", {names.LABEL_API_SERVER: "true"}), (SERVICE["metadata"]["name"], {})]
)
def test_neither_name_nor_label_alone_makes_a_service_ours(name: str, label: dict[str, str]):
    """Users choose names of Services, and a lower user can add labels."""
    labels = {names.LABEL_UPPER_CLUSTER: CLUSTER, **label}
    assert not api_server.is_api_service(name, labels)


def test_service_kubernetes_is_not_copied():
    """Its copy in a mapped namespace leads to an address that is not in the certificate."""
    upper = {
        "metadata": {"name": "kubernetes", "namespace": "default", "uid": "u"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"name": "https", "port": 443}]},
    }
    view = view_of("x-default")
    assert SERVICES.copy_of(upper, view) is None
    elsewhere = {**upper, "metadata": {"name": "kubernetes", "namespace": "shop", "uid": "u"}}
    assert SERVICES.copy_of(elsewhere, view) is not None


def test_copy_of_an_upper_service_with_that_name_is_not_ours():
    """Users choose names; the label with the uid of the upper object tells the two apart."""
    labels = {**SERVICE["metadata"]["labels"], names.LABEL_UPPER_UID: "u"}
    copy = from_dict({**SERVICE, "metadata": {**SERVICE["metadata"], "labels": labels}})
    assert not api_server.is_ours(copy, CLUSTER)


_SHOWN_SPEC = {
    **SERVICE["spec"],
    "clusterIP": "10.97.0.9",
    "clusterIPs": ["10.97.0.9"],
    "ipFamilies": ["IPv4"],
    "internalTrafficPolicy": "Cluster",
    "sessionAffinity": "None",
}
_SHOWN: dict[str, Any] = {"addresses": ["192.0.2.1"], "conditions": {"ready": True, "serving": True}}
_CHANGES: list[dict[str, Any]] = [
    {"ports": [{"port": 443}]},
    {"endpoints": []},
    {"endpoints": [{**_SHOWN, "conditions": {"ready": False}}]},
]


@pytest.mark.parametrize(
    ("desired", "changed", "patch"),
    [
        # The API server adds fields.
        (SERVICE, {"spec": _SHOWN_SPEC}, {}),
        (SERVICE, {"spec": {**_SHOWN_SPEC, "selector": {"app": "x"}}}, {"spec": {"selector": None}}),
        (
            SERVICE,
            {"spec": {**_SHOWN_SPEC, "ports": [{"port": 1, "targetPort": 1}]}},
            {"spec": {"ports": SERVICE["spec"]["ports"]}},
        ),
        (
            SERVICE,
            {"spec": {**_SHOWN_SPEC, "internalTrafficPolicy": "Local"}},
            {"spec": {"internalTrafficPolicy": None}},
        ),
        (SLICE, {"endpoints": [_SHOWN]}, {}),
        *((SLICE, change, {"endpoints": SLICE["endpoints"], "ports": SLICE["ports"]}) for change in _CHANGES),
        (SLICE, {"metadata": {**SLICE["metadata"], "labels": {**SLICE["metadata"]["labels"], "x": "y"}}}, {}),
        *(
            (
                body,
                {"metadata": {**body["metadata"], field: None}},
                {"metadata": {field: body["metadata"][field]}},
            )
            for body in (SERVICE, SLICE)
            for field in ("labels", "annotations")
        ),
    ],
)
def test_what_others_changed_is_restored(desired: Any, changed: dict[str, Any], patch: dict[str, Any]):
    assert api_server.repair({**desired, **changed}, desired) == patch


@pytest.mark.parametrize(
    ("spec", "ips", "address"),
    [
        ({"clusterIP": "10.97.0.9"}, ["192.0.2.1"], "10.97.0.9"),
        ({"clusterIP": "10.97.0.9", "clusterIPs": ["10.97.0.9", "fd00::9"]}, ["192.0.2.1"], "10.97.0.9"),
        ({"clusterIP": "10.97.0.9", "clusterIPs": ["10.97.0.9", "fd00::9"]}, ["2001:db8::1"], "fd00::9"),
        ({"clusterIP": "fd00::9", "clusterIPs": ["fd00::9", "10.97.0.9"]}, ["192.0.2.1"], "10.97.0.9"),
        ({"clusterIP": "10.97.0.9", "clusterIPs": ["10.97.0.9"]}, ["2001:db8::1"], ""),
        ({"clusterIP": "None", "clusterIPs": ["None"]}, ["192.0.2.1"], ""),
        ({"type": "ExternalName"}, ["192.0.2.1"], ""),
    ],
)
def test_pods_get_the_address_of_the_family_that_has_endpoints(
    spec: dict[str, Any], ips: list[str], address: str
):
    """In a dual-stack cluster, the first address may be of the other family, which leads nowhere."""
    assert api_server.address(spec, ips) == address

"""Lower events become valid upper events about the upper object."""

from __future__ import annotations

import re
from typing import Any

import pytest

from virtual_node.translate.objects.events import name_suffix, upper_event

_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"


def _upper_event(lower: dict[str, Any], *, name: str = "web", kind: str = "Pod") -> dict[str, Any]:
    metadata = {"name": name, "namespace": "shop", "uid": "u-1", "resourceVersion": "7"}
    event = {"metadata": {"uid": _UID}, **lower}
    return upper_event(event, {"apiVersion": "v1", "kind": kind, "metadata": metadata}, node_name="vn")


@pytest.mark.parametrize(
    "name",
    ["web", "a" * 253, "a" * 229 + "-" + "b" * 23, "a" * 229 + "." + "b" * 23, "a" * 227 + "-" * 10 + "b"],
    ids=["short", "longest", "hyphen at the cut", "dot at the cut", "hyphens at the cut"],
)
def test_the_name_is_valid_and_unique(name: str):
    """The API server refuses an event with another name, and the event would be lost."""
    made = _upper_event({}, name=name)["metadata"]["name"]
    assert _DNS_SUBDOMAIN.fullmatch(made)
    assert len(made) <= 253
    assert made.rpartition(".")[2] == name_suffix(_UID)


@pytest.mark.parametrize(
    ("lower", "source"),
    [
        ({"source": {"component": "kubelet", "host": "n1"}}, {"component": "kubelet", "host": "vn"}),
        ({"reportingComponent": "scheduler"}, {"component": "scheduler", "host": "vn"}),
        ({}, {"component": "lower-cluster", "host": "vn"}),
        ({"source": "malformed"}, {"component": "lower-cluster", "host": "vn"}),
    ],
    ids=["legacy", "events.k8s.io", "unknown", "malformed"],
)
def test_the_source_names_the_component_and_the_virtual_node(lower: dict[str, Any], source: dict[str, Any]):
    assert _upper_event(lower)["source"] == source


@pytest.mark.parametrize("kind", ["Pod", "PersistentVolumeClaim"])
def test_the_event_is_about_the_upper_object(kind: str):
    lower = {
        "involvedObject": {"name": "x", "namespace": "y", "uid": "l", "fieldPath": "spec.containers{main}"}
    }
    assert _upper_event(lower, kind=kind)["involvedObject"] == {
        "apiVersion": "v1", "kind": kind, "namespace": "shop", "name": "web", "uid": "u-1", "resourceVersion": "7",
        "fieldPath": "spec.containers{main}",
    }  # fmt: skip

"""Lower events become valid upper events about the upper object."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from virtual_node.translate.objects.events import name_suffix, reduced, upper_event

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


_HUGE = "é" * 600_000
_VALID = {
    "reason": "BackOff", "message": "Back-off pulling image", "type": "Warning", "count": 3, "action": "Pulling",
    "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": "2026-01-01T00:05:00Z",
    "eventTime": "2026-01-01T00:00:00.000001Z", "reportingComponent": "kubelet", "reportingInstance": "n1",
    "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000001Z"},
}  # fmt: skip


def _hostile(uid: str) -> dict[str, Any]:
    """Return an event with a megabyte in each field, and fields that no version knows."""
    text = dict.fromkeys(
        ("reason", "message", "action", "reportingComponent", "reportingInstance", "eventTime", "x"), _HUGE
    )
    return {
        **text,
        "type": _HUGE,
        "firstTimestamp": {"deep": _HUGE},
        "source": {"component": _HUGE, "host": _HUGE, "x": _HUGE},
        "series": {"count": 2, "lastObservedTime": _HUGE, "x": _HUGE},
        "involvedObject": {"fieldPath": _HUGE, "name": _HUGE},
        "metadata": {"uid": uid, "name": _HUGE, "annotations": {"x": _HUGE}},
    }


def test_the_copy_has_a_bounded_size():
    made = _upper_event(_hostile(_HUGE))
    assert len(json.dumps(made, ensure_ascii=False).encode()) < 3000
    assert len(made["message"].encode()) <= 1024
    assert len(made["source"]["component"].encode()) <= 128
    assert made["series"] == {"count": 2}
    assert {"eventTime", "firstTimestamp", "x"}.isdisjoint(made)
    assert "fieldPath" not in made["involvedObject"]


def test_an_event_that_waits_for_its_copy_has_a_bounded_size():
    kept = reduced(_hostile(_UID))
    assert kept is not None
    assert len(json.dumps(kept, ensure_ascii=False).encode()) < 3000


@pytest.mark.parametrize(
    "lower",
    [
        {}, _VALID, {"type": "Error"}, {"source": {"component": "kubelet"}}, {"source": "x", "involvedObject": [1]},
        {"involvedObject": {"fieldPath": "spec.containers{main}", "name": "web"}}, _hostile(_UID),
    ],
    ids=["empty", "valid", "another type", "source", "malformed", "field path", "hostile"],
)  # fmt: skip
def test_a_reduced_event_has_the_same_copy(lower: dict[str, Any]):
    kept = reduced({"metadata": {"uid": _UID}, **lower})
    assert kept is not None
    assert _upper_event(kept) == _upper_event(lower)


@pytest.mark.parametrize("uid", [None, "", 7, "u" * 300, "a\0"], ids=repr)
def test_an_event_without_a_valid_uid_is_not_kept(uid: Any):
    assert reduced({"metadata": {"uid": uid}}) is None


@pytest.mark.parametrize(
    ("sent", "copied"),
    [
        ("Warning", "Warning"),
        ("Normal", "Normal"),
        ("Error", "Normal"),
        (None, "Normal"),
        (["Warning"], "Normal"),
    ],
)
def test_an_event_is_normal_or_a_warning(sent: Any, copied: str):
    assert _upper_event({"type": sent})["type"] == copied


@pytest.mark.parametrize(
    ("field", "sent"),
    [
        ("count", -1), ("count", 2**31), ("count", True), ("count", "3"), ("series", [1]), ("series", {"count": "x"}),
        ("firstTimestamp", "yesterday"), ("lastTimestamp", "2026-01-01T00:00:00Z" + "0" * 99), ("eventTime", 1),
    ],
)  # fmt: skip
def test_invalid_values_are_left_out(field: str, sent: Any):
    """The API server would refuse the whole event."""
    assert field not in _upper_event({field: sent})


def test_valid_values_are_copied():
    assert _upper_event(_VALID).items() >= _VALID.items()


@pytest.mark.parametrize("suffix", ["17f3a9c2b4d5e6f7", "abc", "0123456789abcdef0123", "../x", "\ud800"])
def test_a_lower_cluster_cannot_choose_the_name_of_an_event_of_another_component(suffix: str):
    """An event of that name would be overwritten, such as ``web.17f3a9c2b4d5e6f7`` of the scheduler."""
    made = _upper_event({"metadata": {"uid": suffix}})["metadata"]["name"]
    assert made != f"web.{suffix}"
    assert re.fullmatch(r"web\.[0-9a-f]{20}", made)

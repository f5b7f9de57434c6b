"""The cached object: complete except managedFields and selfLink, immutable, and small."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.client.collection import decode_list, decode_watch_event
from controller_runtime.errors import Expired, Forbidden
from controller_runtime.objects import Object, decode_object, from_dict


def pod(number: int = 0, *, managed: bool = False) -> dict[str, Any]:
    """Return a pod of about 3 KB, 5 KB with managedFields."""
    whole: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"web-{number:05}",
            "generateName": "web-",
            "namespace": "shop",
            "uid": f"0e7c{number:05}-5a3b-4d4e-9b1f-1c2d3e4f5a6b",
            "resourceVersion": str(100_000 + number),
            "generation": 2,
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "web", "pod-template-hash": f"{number:x}"},
            "annotations": {"example.com/note": "n" * 60},
            "ownerReferences": [
                {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u", "controller": True}
            ],
        },
        "spec": {
            "nodeName": "east",
            "containers": [
                {
                    "name": name,
                    "image": f"registry.example/shop/{name}:1.2.3",
                    "env": [{"name": f"KEY_{key}", "value": "v" * 20} for key in range(12)],
                    "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                }
                for name in ("main", "side")
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": "True", "lastProbeTime": None}] * 4,
            "containerStatuses": [{"name": "main", "imageID": "y" * 60, "containerID": "z" * 70}] * 2,
        },
    }
    if managed:
        whole["metadata"]["managedFields"] = [
            {"manager": "kubelet", "fieldsV1": {f"f:{key}": {"f:a": {}, "f:b": {}} for key in range(60)}}
        ]
    return whole


def watch_line(kind: str, whole: dict[str, Any]) -> bytes:
    """Return a line of a watch."""
    return json.dumps({"type": kind, "object": whole}, separators=(",", ":")).encode()


def test_metadata_is_decoded_and_shortcuts_read_it() -> None:
    """Name, namespace, uid, version, labels and annotations need no further decoding."""
    found = decode_object(json.dumps(pod(7)).encode())
    assert (found.api_version, found.kind) == ("v1", "Pod")
    assert (found.name, found.namespace, found.key) == ("web-00007", "shop", "shop/web-00007")
    assert (found.uid, found.resource_version) == (found.metadata.uid, "100007")
    assert found.labels == {"app": "web", "pod-template-hash": "7"}
    assert found.annotations == {"example.com/note": "n" * 60}
    assert found.metadata.owner_references[0]["kind"] == "ReplicaSet"
    assert found.metadata.generation == 2
    assert repr(found) == f"<Pod shop/web-00007 uid={found.uid} rv=100007>"


def test_key_of_a_cluster_scoped_object_is_its_name() -> None:
    """As in client-go's MetaNamespaceKeyFunc."""
    assert from_dict({"kind": "Node", "metadata": {"name": "n"}}).key == "n"


def test_fields_are_decoded_at_each_access() -> None:
    """A reader may change its copy."""
    found = from_dict(pod())
    spec = found.spec
    spec["containers"].clear()
    found.metadata.owner_references.clear()
    assert len(found.spec["containers"]) == 2
    assert len(found.metadata.owner_references) == 1
    assert found.field("spec") == found.spec
    assert found.field("status") == found.status == pod()["status"]


def test_keys_of_a_field_are_read_without_its_values() -> None:
    found = from_dict({"metadata": {"name": "c"}, "data": {"a": "b", "c": {"d": 1}}, "binaryData": None})
    assert found.field_keys("data") == {"a", "c"}
    assert found.field_keys("binaryData") == found.field_keys("other") == frozenset()


def test_the_size_of_the_spec_is_that_of_its_json() -> None:
    assert from_dict({"metadata": {"name": "c"}, "spec": {"a": "b"}}).spec_size == len('{"a":"b"}')
    assert from_dict({"metadata": {"name": "c"}}).spec_size == 0


def test_absent_fields_are_none() -> None:
    found = from_dict({"metadata": {"name": "c"}, "data": {"a": "b"}})
    assert (found.spec, found.status, found.field("binaryData")) == (None, None, None)
    assert found.field("data") == {"a": "b"}
    assert found.field("metadata") is None
    assert found.metadata.owner_references == []


def test_objects_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        from_dict(pod()).kind = "Node"  # type: ignore[misc]


def test_objects_are_compared_by_identity() -> None:
    """Two equal states are two objects, and both can be dict keys."""
    one, other = from_dict(pod()), from_dict(pod())
    assert one != other
    assert len({one, other}) == 2


def test_equality_of_parts() -> None:
    """Spec and status are compared separately, by their JSON."""
    one = from_dict(pod())
    changed = pod()
    changed["status"]["phase"] = "Failed"
    other = from_dict(changed)
    assert one.has_spec_equal(other)
    assert not one.has_status_equal(other)
    assert not one.has_spec_equal(one.without("spec"))
    assert one.without("spec").has_spec_equal(other.without("spec"))


def test_without_and_with_fields() -> None:
    """Transforms drop and replace top-level fields and leave the original alone."""
    original = from_dict({**pod(), "extra": [1]})
    slim = original.without("spec", "extra")
    assert slim.to_dict() == {name: value for name, value in pod().items() if name != "spec"}
    replaced = original.with_fields(status={"phase": "Failed"}, note="n")
    assert (replaced.status, replaced.field("note")) == ({"phase": "Failed"}, "n")
    assert replaced.metadata is original.metadata
    assert original.to_dict() == {**pod(), "extra": [1]}


def test_with_only_keeps_the_metadata_that_is_read() -> None:
    """Everything else may be large, because users write it."""
    owners = [{"uid": "a", "controller": True}, {"uid": "b"}]
    metadata = {
        "name": "p", "namespace": "ns", "uid": "u", "resourceVersion": "7", "finalizers": ["x/y"],
        "deletionTimestamp": "2026-01-01T00:00:00Z", "ownerReferences": owners,
        "labels": {"app": "a", "x": "y"}, "annotations": {"note": "n", "x": "y"},
    }  # fmt: skip
    original = from_dict({**pod(), "metadata": metadata})
    bare = {
        key: metadata[key] for key in ("name", "namespace", "uid", "resourceVersion", "deletionTimestamp")
    }
    assert original.with_only().to_dict() == {**pod(), "metadata": bare}
    kept = original.with_only(
        labels=lambda key: key == "app",
        annotations=lambda key: key == "note",
        owners=lambda one: "controller" in one,
    )
    assert (kept.labels, kept.annotations) == ({"app": "a"}, {"note": "n"})
    assert kept.metadata.owner_references == owners[:1]
    assert original.metadata.finalizers == ("x/y",)


def test_list_items_get_kind_and_version() -> None:
    """Servers omit apiVersion and kind in items; the list's own, or the caller's, are used."""
    bare = {name: value for name, value in pod().items() if name not in {"apiVersion", "kind"}}
    body = {
        "kind": "PodList",
        "apiVersion": "v1",
        "metadata": {"resourceVersion": "9", "continue": "c", "remainingItemCount": 3},
        "items": [bare],
    }
    items, meta = decode_list(json.dumps(body).encode())
    assert [item.to_dict() for item in items] == [pod()]
    assert (meta.resource_version, meta.continue_, meta.remaining) == ("9", "c", 3)
    items, _ = decode_list(json.dumps({"items": [bare]}).encode(), api_version="v1", kind="Pod")
    assert next(items).to_dict() == pod()


@pytest.mark.parametrize("items", [None, []])
def test_empty_list(items: list[Any] | None) -> None:
    """Items may be null or empty."""
    found, meta = decode_list(
        json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": items}).encode()
    )
    assert (list(found), meta.resource_version, meta.continue_) == ([], "1", "")


def test_watch_events() -> None:
    """A line has a type and an object."""
    event = decode_watch_event(watch_line("MODIFIED", pod(managed=True)))
    assert event.type == "MODIFIED"
    assert event.object.to_dict() == pod()


def test_bookmark() -> None:
    """A bookmark has a version and the mark of the initial list's end."""
    event = decode_watch_event(
        b'{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12",'
        b'"annotations":{"k8s.io/initial-events-end":"true"}},"spec":{"containers":null},"status":{}}}'
    )
    assert (event.type, event.object.resource_version, event.object.name) == ("BOOKMARK", "12", "")
    assert event.object.annotations == {"k8s.io/initial-events-end": "true"}


@pytest.mark.parametrize(
    ("code", "reason", "expected"), [(410, "Expired", Expired), (403, "Forbidden", Forbidden)]
)
def test_error_events_raise(code: int, reason: str, expected: type[Exception]) -> None:
    """An ERROR event is raised as the exception of its Status."""
    line = watch_line(
        "ERROR",
        {
            "kind": "Status",
            "metadata": {},
            "status": "Failure",
            "code": code,
            "reason": reason,
            "message": "m",
        },
    )
    with pytest.raises(expected, match=rf"m \({code} {reason}\)"):
        decode_watch_event(line)


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b"<html>",
        b'{"metadata":3}',
        b'{"metadata":null}',
        b'{"metadata":{"name":3}}',
        b'{"metadata":{"name":"a"},"kind":1}',
        b'{"metadata":{"name":"a"}',
    ],
)
def test_bad_objects_are_refused(bad: bytes) -> None:
    """Invalid objects raise msgspec's DecodeError, also in watch lines."""
    with pytest.raises(msgspec.DecodeError):
        decode_object(bad)
    with pytest.raises(msgspec.DecodeError):
        decode_watch_event(b'{"type":"ADDED","object":' + bad + b"}")


def test_null_metadata_fields_count_as_absent() -> None:
    """Some writers send null."""
    found = from_dict(
        {"metadata": {"name": "a", "labels": None, "creationTimestamp": None, "ownerReferences": None}}
    )
    assert (found.labels, found.metadata.owner_references) == ({}, [])
    assert found.to_dict() == {"metadata": {"name": "a"}}


def test_empty_labels_are_not_shared() -> None:
    """Otherwise one reader could modify those of all objects."""
    one, other = from_dict({"metadata": {"name": "a"}}), from_dict({"metadata": {"name": "b"}})
    assert one.labels is not other.labels


NAMES = st.text(st.characters(codec="utf-8"), max_size=8)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | NAMES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
WORDS = NAMES.filter(bool)
MAPS = st.dictionaries(NAMES, NAMES, min_size=1, max_size=3)
METADATA = st.fixed_dictionaries(
    {"name": WORDS},
    optional={
        "generateName": WORDS,
        "namespace": WORDS,
        "uid": WORDS,
        "resourceVersion": WORDS,
        "generation": st.integers(1, 2**62),
        "creationTimestamp": WORDS,
        "deletionTimestamp": WORDS,
        "deletionGracePeriodSeconds": st.integers(0, 2**31),
        "labels": MAPS,
        "annotations": MAPS,
        "finalizers": st.lists(NAMES, min_size=1, max_size=3),
        "ownerReferences": st.lists(st.dictionaries(NAMES, JSON, max_size=3), min_size=1, max_size=2),
        "managedFields": JSON,
        "selfLink": NAMES,
    },
)
OBJECTS = st.builds(
    lambda rest, known, metadata: {**rest, **known, "metadata": metadata},
    st.dictionaries(NAMES.filter(lambda name: name not in {"apiVersion", "kind"}), JSON, max_size=3),
    st.fixed_dictionaries({}, optional={"apiVersion": WORDS, "kind": WORDS, "spec": JSON, "status": JSON}),
    METADATA,
)


def less_what_is_dropped(whole: dict[str, Any]) -> dict[str, Any]:
    """Return an object without managedFields and selfLink."""
    dropped = {"managedFields", "selfLink"}
    kept = {name: value for name, value in whole["metadata"].items() if name not in dropped}
    return {**whole, "metadata": kept}


@given(OBJECTS)
def test_round_trip(whole: dict[str, Any]) -> None:
    """An object is written as it was read, without managedFields and selfLink; unknown fields are kept."""
    expected = less_what_is_dropped(whole)
    found = from_dict(whole)
    assert found.to_dict() == expected
    assert json.loads(json.dumps(found.to_dict())) == expected
    event = decode_watch_event(watch_line("ADDED", whole))
    assert event.object.to_dict() == expected
    items, _ = decode_list(json.dumps({"items": [whole, whole]}).encode())
    assert [item.to_dict() for item in items] == [expected, expected]


@given(OBJECTS)
def test_single_fields_agree_with_the_whole(whole: dict[str, Any]) -> None:
    found = from_dict(whole)
    for name, value in whole.items():
        if name not in {"apiVersion", "kind", "metadata"}:
            assert found.field(name) == value
    assert (found.spec, found.status) == (whole.get("spec"), whole.get("status"))


def test_to_dict_starts_with_version_and_kind() -> None:
    """The usual order in printed objects."""
    assert list(from_dict(pod()).to_dict()) == ["apiVersion", "kind", "metadata", "spec", "status"]


def test_cached_object_is_small_and_invisible_to_the_collector() -> None:
    """A cached pod takes its JSON without managedFields and under 1 KB; a full collection visits none of it."""
    raw = len(json.dumps(pod(), separators=(",", ":")))
    objects: list[Object] = [
        decode_watch_event(watch_line("ADDED", pod(managed=True))).object
    ]  # fills caches
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        # Each line is garbage at once, and must not be kept alive by its object.
        objects += [
            decode_watch_event(watch_line("ADDED", pod(number, managed=True))).object for number in range(200)
        ]
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (after - before) / (len(objects) - 1) < raw + 1024
    gc.collect()
    sample = objects[7]
    assert not any(
        gc.is_tracked(part)
        for part in (sample, sample.metadata, sample.labels, sample.annotations, sample.metadata.finalizers)
    )


def test_equal_strings_of_many_objects_are_shared() -> None:
    """Kinds, versions and namespaces are interned."""
    one, other = from_dict(pod(1)), from_dict(pod(2))
    assert one.kind is other.kind
    assert one.api_version is other.api_version
    assert one.namespace is other.namespace

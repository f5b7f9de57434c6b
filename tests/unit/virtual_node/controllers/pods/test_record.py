"""What is remembered about a pod has a bounded size, whatever its lower cluster sends."""

from __future__ import annotations

from typing import Any

import pytest

from controller_runtime.objects import Object, from_dict
from virtual_node.controllers.pods.record import PodRecord, SpecSync, StatusSync, metadata_digest

MIB = 1 << 20


def lower(*, version: int = 1, **fields: Any) -> Object:
    """A lower pod."""
    metadata = {"name": "p", "namespace": "ns", "uid": "u", "resourceVersion": str(version)}
    return from_dict({"metadata": metadata | fields.pop("metadata", {}), "kind": "Pod", **fields})


@pytest.mark.parametrize(
    "large",
    [
        {"spec": {"x": "y" * MIB}},
        {"metadata": {"annotations": {"x": "y" * MIB}}},
        {"status": {"phase": "Failed", "unknown": "y" * MIB}},
        {
            "status": {
                "phase": "Failed",
                "containerStatuses": [{"name": f"c{number}"} for number in range(20_000)],
            }
        },
        {"other": "y" * MIB},
    ],
    ids=["spec", "annotations", "unknown field", "containers", "other"],
)
def test_little_is_kept_of_a_large_pod_after_its_deletion(large):
    """A hostile server could send a pod of megabytes for each of our pods, and delete it."""
    record = PodRecord()
    status = {"phase": "Failed", "message": "why"}
    record.saw_deletion(lower(**{"status": status, **large}), containers=2)
    assert record.lower.last is not None
    assert record.lower.last.memory < 80_000
    assert (record.lower.last.uid, record.lower.last.status["phase"]) == ("u", "Failed")


def test_a_pod_of_usual_size_is_kept_completely():
    """Its devices are reported, too."""
    record, pod = PodRecord(), lower(spec={"resourceClaims": []})
    record.saw_deletion(pod, containers=1)
    assert record.lower.last is pod


def test_the_answer_to_a_change_is_kept_unless_it_is_far_larger():
    """Only the memory of the cached pod counts."""
    sync, before = SpecSync(), lower(spec={"x": "y" * 1000})
    changed = lower(version=2, spec={"x": "y" * 2000})
    sync.wrote(changed, before)
    assert sync.written is changed
    sync.wrote(lower(version=3, spec={"x": "y" * MIB}), before)
    assert sync.written is None


def test_a_digest_tells_labels_from_annotations():
    """Also of pods without any."""
    found = [
        metadata_digest(lower(metadata=metadata))
        for metadata in ({}, {"labels": {"a": "b"}}, {"annotations": {"a": "b"}}, {"labels": {"a": "c"}})
    ]
    assert len({0, *found}) == 5
    assert metadata_digest(lower(version=2)) == found[0]


@pytest.mark.parametrize(
    ("after", "is_own"),
    [
        ({"status": {"phase": "Running"}}, True),
        ({"status": {"phase": "Running"}, "metadata": {"resourceVersion": "3"}}, False),
        ({"status": {"phase": "Succeeded"}}, False),
        ({"status": {"phase": "Failed"}}, False),
        ({"status": {}, "metadata": {"labels": {"topology.kubernetes.io/zone": "a"}}}, False),
        ({"status": {}, "metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}, False),
    ],
    ids=["status", "another version", "succeeded", "failed", "labels", "deletion"],
)
def test_only_a_status_of_our_own_needs_no_reconciliation(after, is_own):
    """All else that a change may contain leads to further steps."""
    sync = StatusSync(compared=("2", "7", "", "None", "", ""))
    old = lower(version=1)
    new = lower(**{**after, "metadata": {"resourceVersion": "2"} | after.get("metadata", {})})
    assert sync.is_own_write(old, new) is is_own
    assert not StatusSync().is_own_write(old, new)

"""The Lease names the node as a kubelet does; the process that mirrors the node is in an annotation."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterset.model import names
from controller_runtime import leaderelection
from controller_runtime.apimachinery import timestamps
from virtual_node.controllers import node_lease

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def _held(lease: dict[str, Any], process: str) -> dict[str, Any]:
    return node_lease.held(lease, process=process, node="vn", duration=40, now=NOW)


def _held_by_earlier_release(lease: dict[str, Any], process: str) -> dict[str, Any]:
    """Return the Lease as a release writes it that knows no annotation."""
    return leaderelection.held(lease, identity=process, duration=40, now=NOW)


def _released_by_earlier_release(lease: dict[str, Any]) -> dict[str, Any]:
    return {**lease, "spec": {**lease["spec"], "holderIdentity": "vn"}}


NEW = leaderelection.new("kube-node-lease", "vn")
OURS = _held(NEW, "us")
OLD = _held_by_earlier_release(NEW, "old")


@pytest.mark.parametrize(
    ("lease", "process"),
    [
        ({}, ""),
        (NEW, ""),
        (OURS, "us"),
        (_held(_held(OURS, "us"), "us"), "us"),
        (_held(OURS, "other"), "other"),
        (node_lease.released(OURS, "vn"), ""),
        (_held(node_lease.released(OURS, "vn"), "other"), "other"),
        (OLD, "old"),
        (_released_by_earlier_release(OLD), ""),
        (_held(OLD, "us"), "us"),
        # The earlier release keeps the annotation of the process from which it took the Lease.
        (_held_by_earlier_release(OURS, "old"), "old"),
        (_held_by_earlier_release(OURS, "us"), "us"),
        (_released_by_earlier_release(_held_by_earlier_release(OURS, "old")), ""),
        (_held(_held_by_earlier_release(OURS, "us"), "us"), "us"),
        ({**OURS, "spec": {**OURS["spec"], "holderIdentity": ""}}, ""),
    ],
)
def test_the_process_that_holds_a_lease_is_known_whichever_release_wrote_it(
    lease: dict[str, Any], process: str
):
    """An annotation of an earlier holder counts for nothing."""
    assert node_lease.process_of(lease, "vn") == process


def test_the_holder_is_the_node_and_only_another_process_is_a_transition():
    """A kubelet writes the node's name, and other programs expect it."""
    again = _held(OURS, "us")
    assert again["spec"]["holderIdentity"] == "vn"
    assert again["spec"]["leaseTransitions"] == OURS["spec"]["leaseTransitions"] == 0
    assert _held(again, "other")["spec"]["leaseTransitions"] == 1
    assert _held(OLD, "old")["spec"]["leaseTransitions"] == 0
    assert _held(OLD, "us")["spec"]["leaseTransitions"] == 1


def test_other_annotations_are_kept():
    """They contain what the process reports."""
    lease = {**NEW, "metadata": {**NEW["metadata"], "annotations": {names.ANNOTATION_FAULTS: "{}"}}}
    held = _held(lease, "us")
    assert held["metadata"]["annotations"] == {
        names.ANNOTATION_FAULTS: "{}",
        names.ANNOTATION_PROCESS: "us 0",
    }
    assert node_lease.released(held, "vn")["metadata"]["annotations"] == {names.ANNOTATION_FAULTS: "{}"}


def test_every_write_advances_the_renewal():
    """The node controller of 1.37 judges no node while a Lease has changed without a renewal that it could see."""
    times = [
        timestamps.parse(lease["spec"]["renewTime"]) for lease in (OURS, node_lease.released(OURS, "vn"))
    ]
    assert times[1] - times[0] == timedelta(microseconds=1)
    assert node_lease.released(NEW, "vn")["spec"] == {"holderIdentity": "vn"}


@pytest.mark.parametrize(
    ("process", "age", "unchanged_for", "free"),
    [
        ("other", 0, 0, False),
        ("other", 0, 39.9, False),
        ("other", 0, 40, True),
        ("us", 0, 0, True),
        ("", 0, 0, True),
        ("other", 119, 0, False),  # a clock that differs by a minute
        ("other", 120, 0, True),
        ("other", -3600, 0, False),
    ],
)
@pytest.mark.parametrize("is_earlier_release", [False, True])
def test_a_lease_is_free_when_its_process_has_ended(
    process: str, age: float, unchanged_for: float, *, free: bool, is_earlier_release: bool
):
    """By this process' own observation; wall clocks decide only about long expired leases."""
    write = _held_by_earlier_release if is_earlier_release else _held
    lease = write(NEW, process) if process else node_lease.released(OURS, "vn")
    lease["spec"]["renewTime"] = timestamps.micro_time(NOW - timedelta(seconds=age))
    assert node_lease.may_hold(lease, process="us", node="vn", unchanged_for=unchanged_for, now=NOW) is free

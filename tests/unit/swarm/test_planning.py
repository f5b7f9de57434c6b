"""Slots: which pods are workers, and how long they keep their jobs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swarm import planning
from swarm.handover import Slot
from swarm.planning import DEPLOYMENT, PODS, STATEFUL_SET, Pod, Workers, arrange

READY = Pod("w-0", "u0", ready=True)


def _arranged(known: dict[str, Slot], pods: list[Pod], workers: Workers, now: float) -> dict[str, Slot]:
    return arrange(known, pods, workers, now=now)


def test_slot_is_created_for_a_ready_pod():
    """Pending pods get no jobs, nor do pods above the number of replicas."""
    pods = [
        READY,
        Pod("w-1", "u1"),
        Pod("w-2", "u2", ready=True),
        Pod("w-3", "u3", ready=True, finished=True),
    ]
    found = _arranged({}, pods, Workers(STATEFUL_SET, 2), 100.0)
    assert list(found) == ["w-0"]
    assert list(_arranged({}, pods, Workers(STATEFUL_SET, 5), 100.0)) == ["w-0", "w-2"]
    assert list(_arranged({}, pods, Workers(STATEFUL_SET, 1, first=2), 100.0)) == ["w-2"]


def test_unready_worker_keeps_its_jobs_for_the_grace_period():
    """I5; also while its pod is replaced under the same name."""
    workers = Workers(STATEFUL_SET, 2, grace=30)
    other = Pod("w-1", "u1", ready=True)
    known = _arranged({}, [READY, other], workers, 100.0)
    known["w-0"].jobs = ["a"]
    for pods in (
        [other],
        [replace(READY, ready=False), other],
        [replace(READY, uid="new", ready=False), other],
    ):
        later = _arranged(known, pods, workers, 110.0)
        assert later["w-0"].jobs == ["a"]
        assert later["w-0"].unready_since == 110.0
        assert planning.next_expiry(later, workers, now=115.0) == 25.0
        assert _arranged(later, pods, workers, 139.0)["w-0"].jobs == ["a"]
        assert list(_arranged(later, pods, workers, 140.0)) == ["w-1"]
        back = _arranged(later, [replace(READY, uid="new"), other], workers, 139.0)
        assert (back["w-0"].uid, back["w-0"].unready_since) == ("new", 0.0)


def test_slot_of_a_ready_pod_is_created_when_its_worker_has_registered():
    """While no worker works, all ready pods get slots; then those that do not register lose them."""
    workers = Workers(STATEFUL_SET, 3, grace=30)
    new = [Pod(f"w-{number}", f"u{number}", ready=True, registered=False) for number in range(3)]
    known = _arranged({}, new[:2], workers, 100.0)
    assert {name: slot.unready_since for name, slot in known.items()} == {"w-0": 100.0, "w-1": 100.0}
    pods = [replace(new[0], registered=True), *new[1:]]
    found = _arranged(known, pods, workers, 110.0)
    assert {name: slot.unready_since for name, slot in found.items()} == {"w-0": 0.0, "w-1": 100.0}
    assert list(_arranged(found, pods, workers, 129.0)) == ["w-0", "w-1"]
    assert list(_arranged(found, pods, workers, 130.0)) == ["w-0"]
    pods[2] = replace(new[2], registered=True)
    assert list(_arranged(found, pods, workers, 130.0)) == ["w-0", "w-2"]


@pytest.mark.parametrize("kind", [STATEFUL_SET, DEPLOYMENT, PODS])
def test_silent_worker_loses_its_slot_immediately(kind):
    """If another worker works. Its pod gets no slot until it registers, not even the slot of another pod."""
    workers = Workers(kind, 2, grace=30)
    pods = [READY, Pod("w-1", "u1", ready=True)]
    known = _arranged({}, pods, workers, 100.0)
    first, second = known
    silent = [READY, replace(pods[1], registered=False, silent=True)]
    left = _arranged(known, silent, workers, 101.0)
    assert list(left) == [first]
    assert _arranged(left, silent, workers, 200.0) == left
    assert list(_arranged(left, pods, workers, 201.0)) == [first, second]
    both = [replace(pod, registered=False, silent=True) for pod in pods]
    assert list(_arranged(known, both, workers, 900.0)) == [first, second], "no worker could run the jobs"
    if kind == DEPLOYMENT:
        assert _arranged(left, silent[1:], workers, 200.0)[first].uid == "", "it waits for its next pod"


def test_all_slots_stay_while_none_is_ready():
    """An outage of all workers moves no job."""
    workers = Workers(STATEFUL_SET, 2, grace=30)
    known = _arranged({}, [READY, Pod("w-1", "u1", ready=True)], workers, 100.0)
    assert list(_arranged(_arranged(known, [], workers, 110.0), [], workers, 900.0)) == ["w-0", "w-1"]


def test_scaling_down_removes_slots_immediately():
    """Also while their pods are being deleted."""
    pods = [READY, Pod("w-1", "u1", ready=True)]
    known = _arranged({}, pods, Workers(STATEFUL_SET, 2), 100.0)
    assert list(_arranged(known, pods, Workers(STATEFUL_SET, 1), 101.0)) == ["w-0"]
    assert _arranged(known, pods, Workers(STATEFUL_SET, 0), 101.0) == {}


def test_replacement_pod_of_a_deployment_takes_over_the_slot():
    """The pod name differs, slot and jobs stay; surplus pods of a rollout wait."""
    workers = Workers(DEPLOYMENT, 2)
    known = _arranged({}, [Pod("x-aa", "1", ready=True), Pod("x-bb", "2", ready=True)], workers, 100.0)
    assert {name: slot.pod for name, slot in known.items()} == {"slot-0": "x-aa", "slot-1": "x-bb"}
    known["slot-1"].jobs = ["a"]
    surplus = [
        Pod("x-aa", "1", ready=True),
        Pod("x-bb", "2", ready=True),
        Pod("x-cc", "3", ready=True),
    ]
    assert _arranged(known, surplus, workers, 101.0) == known
    surplus[1] = replace(surplus[1], deleting=True)
    later = _arranged(known, surplus, workers, 102.0)
    assert (later["slot-1"].uid, later["slot-1"].jobs) == ("3", ["a"])
    assert list(_arranged(later, surplus, Workers(DEPLOYMENT, 1), 103.0)) == ["slot-0"]


def test_selected_pods_lose_their_slot_with_their_object():
    """A bare pod never returns under its name."""
    pods = [Pod("b", "2", ready=True), Pod("a-10", "3", ready=True), Pod("a-9", "1", ready=True)]
    known = _arranged({}, pods, Workers(PODS), 100.0)
    assert list(known) == ["a-9", "a-10", "b"]
    assert list(_arranged(known, pods[:2], Workers(PODS), 101.0)) == ["a-10", "b"]
    deleting = [pods[0], replace(pods[1], deleting=True), pods[2]]
    assert list(_arranged(known, deleting, Workers(PODS), 101.0)) == ["a-9", "b"]


@pytest.mark.parametrize(("name", "expected"), [("w-0", 0), ("w-12", 12), ("w", 1 << 30), ("w-x", 1 << 30)])
def test_ordinals(name, expected):
    """The number at the end of the name."""
    assert planning.ordinal(name) == expected


def test_a_deployment_with_billions_of_replicas_takes_no_memory():
    """Any user can write this number, and no pod exists for it."""
    pods = [Pod(f"w-{name}", f"u-{name}", ready=True) for name in "abc"]
    found = _arranged({}, pods, Workers(DEPLOYMENT, 2**31 - 1), 100.0)
    assert list(found) == ["slot-0", "slot-1", "slot-2"]
    assert list(_arranged(found, pods[:2], Workers(DEPLOYMENT, 2**31 - 1), 100.0)) == [
        "slot-0",
        "slot-1",
        "slot-2",
    ]

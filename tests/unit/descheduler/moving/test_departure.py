"""The steps of pods whose replacement starts first, for many states of their owner."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from controller_runtime.apimachinery import timestamps
from descheduler.moving.departure import Departure, Owner, Step, decide
from tests.thorough import seeds
from tests.unit.descheduler.bodies import START

_OWNER = {"kind": "ReplicaSet", "name": "web", "uid": "rs", "controller": True}


def _pod(
    uid: str, *, ready: bool = True, label: str = "h1", owner: Any = _OWNER, since: float = 60, **more: Any
):
    moment = timestamps.rfc3339(START - timedelta(seconds=since))
    condition = {"type": "Ready", "status": "True" if ready else "False", "lastTransitionTime": moment}
    metadata = {
        "uid": uid,
        "labels": {"pod-template-hash": label},
        "ownerReferences": [owner] if owner else [],
    }
    return {"metadata": {**metadata, **more}, "status": {"phase": "Running", "conditions": [condition]}}


def _departure(uid: str = "old", *, need: int = 3, deadline: float = 60) -> Departure:
    return Departure(
        namespace="default", pod_name=uid, old_uid=uid, node="a", strategy="Drain", reason="", owner_name="web",
        owner_uid="rs", template_hash="h1", need=need,
        deadline=timestamps.rfc3339(START + timedelta(seconds=deadline)),
    )  # fmt: skip


RELEASED = _pod("old", label="h1-leaving", owner=None)
UNREADY = _pod("old", label="h1-leaving", owner=None, ready=False)


@pytest.mark.parametrize(
    ("pod", "others", "options", "step"),
    [
        (RELEASED, "RRR", {}, Step.EVICT),
        (RELEASED, "RRn", {}, Step.WAIT),
        (RELEASED, "RRn", {"deadline": 0}, Step.RESTORE),
        (RELEASED, "RRn", {"cancelled": {"old": "cancelled"}}, Step.RESTORE),
        (RELEASED, "RRR", {"cancelled": {"old": "cancelled"}}, Step.RESTORE),
        (RELEASED, "RR", {"need": 2}, Step.EVICT),  # one was broken before the release
        (RELEASED, "RR", {"desired": 2}, Step.EVICT),  # scaled down
        (RELEASED, "RRR", {"desired": 5}, Step.EVICT),  # scaled up: no worse than before
        (RELEASED, "RRR", {"min_ready": 30}, Step.EVICT),
        (RELEASED, "RRR", {"min_ready": 90}, Step.WAIT),
        (RELEASED, "", {"desired": None}, Step.DELETE),  # its owner was deleted
        (UNREADY, "RRn", {}, Step.EVICT),
        # It may run in a lower cluster that does not answer.
        (UNREADY, "RRn", {"unseen": {"old"}}, Step.WAIT),
        (UNREADY, "RRR", {"unseen": {"old"}}, Step.EVICT),
        (UNREADY, "RRn", {"unseen": {"old"}, "deadline": 0}, Step.RESTORE),
        (UNREADY, "RRn", {"unseen": {"old"}, "cancelled": {"old": "cancelled"}}, Step.RESTORE),
        (_pod("old", label="h1-leaving"), "RRn", {}, Step.WAIT),  # not released yet by its owner
        (_pod("old", label="h1-leaving", owner={**_OWNER, "uid": "other"}), "RRR", {}, Step.FORGET),
        (_pod("old"), "RRR", {}, Step.FORGET),  # its label was restored
        (
            _pod("old", label="x", owner=None, deletionTimestamp="2026-01-01T00:00:00Z"),
            "RRR",
            {},
            Step.FORGET,
        ),
        (None, "RRR", {}, Step.FORGET),
    ],
)
def test_step(pod, others, options, step):
    pods = {f"p{number}": _pod(f"p{number}", ready=state == "R") for number, state in enumerate(others)}
    if pod is not None:
        pods["old"] = pod
    desired = options.get("desired", 3)
    owner = None if desired is None else Owner(desired, options.get("min_ready", 0))
    departure = _departure(need=options.get("need", 3), deadline=options.get("deadline", 60))
    (decision,) = decide(
        [departure],
        pods,
        owner,
        now=START,
        cancelled=options.get("cancelled", {}),
        unseen=options.get("unseen", ()),
    )
    assert decision.step is step
    assert bool(decision.why) is (step is Step.RESTORE)


@pytest.mark.parametrize(("deadline", "step"), [(60, Step.WAIT), (0, Step.RESTORE)])
@pytest.mark.parametrize(
    ("new", "trouble", "reason"),
    [
        ({"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes"}, "",
         "shop/new waits: Unschedulable: 0/3 nodes"),
        ({"type": "PodScheduled", "status": "True"}, "", ""),
        ({"type": "PodScheduled", "status": "True"}, "exceeded quota", "web waits: exceeded quota"),
    ],
)  # fmt: skip
def test_a_replacement_that_has_not_started_is_named_with_its_reason(new, trouble, reason, deadline, step):
    """The released pod, and pods of other owners, have reasons of their own that do not matter."""
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "other"}
    pods = {
        "old": _pod("old", label="h1-leaving", owner=None),
        "new": _pod("new", ready=False, namespace="shop", name="new"),
        "other": _pod("other", ready=False, owner={**_OWNER, "uid": "x"}, namespace="shop", name="a"),
    }
    pods["new"]["status"]["conditions"].append(new)
    pods["old"]["status"]["conditions"].append(refused)
    pods["other"]["status"]["conditions"].append(refused)
    (decision,) = decide([_departure(deadline=deadline)], pods, Owner(3, 0, trouble), now=START, cancelled={})
    assert decision.step is step
    assert decision.why.removeprefix("its replacement was not Ready in time").removeprefix(": ") == reason


def test_evictions_leave_as_many_ready_pods_as_the_owner_wants_or_had():
    for seed in seeds(200, 2_000):
        _check_evictions(seed)


def _check_evictions(seed: int) -> None:
    random = Random(seed)
    desired, needed = random.randint(0, 6), random.randint(1, 6)
    pods, departures = {}, []
    for number in range(random.randint(1, 8)):
        uid = f"p{number}"
        ready = random.random() < 0.7
        if random.random() < 0.4:
            departures.append(_departure(uid, need=needed, deadline=random.choice([-1, 60])))
            pods[uid] = _pod(uid, ready=ready, label="h1-leaving", owner=random.choice([None, _OWNER]))
        else:
            pods[uid] = _pod(uid, ready=ready)
    cancelled = {one.old_uid: "cancelled" for one in departures if random.random() < 0.2}
    decisions = decide(departures, pods, Owner(desired, 0), now=START, cancelled=cancelled)
    assert Counter(one.departure.old_uid for one in decisions) == Counter(one.old_uid for one in departures)

    def ready_of(uids: Any) -> int:
        return sum(pods[uid]["status"]["conditions"][0]["status"] == "True" for uid in uids)

    evicted = {one.departure.old_uid for one in decisions if one.step is Step.EVICT}
    before, after = ready_of(pods), ready_of(pods.keys() - evicted)
    assert after >= min(desired, needed, before)
    assert not evicted & cancelled.keys() or ready_of(evicted & cancelled.keys()) == 0

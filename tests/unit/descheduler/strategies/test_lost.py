"""Since when a virtual node is silent, if an earlier leader has seen the beginning; and when its pods move."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.moving import silence as silences
from clusterset.model.moving.silence import Silence
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import from_dict
from descheduler.strategies.stale_cluster import LostNodes, continued
from tests.unit.descheduler.bodies import START, node


def at(seconds: float) -> str:
    return timestamps.rfc3339(START + timedelta(seconds=seconds))


def recorded(seconds: float) -> Silence:
    since = START + timedelta(seconds=seconds)
    return Silence(since=since, running_pods_move_at=since + timedelta(seconds=300))


def ready(status: str, seconds: float) -> dict[str, Any]:
    return {"conditions": [{"type": "Ready", "status": status, "lastTransitionTime": at(seconds)}]}


@pytest.mark.parametrize(
    ("before", "status", "renewed", "since"),
    [
        (None, ready("False", 10), at(195), 200),  # this process saw the beginning
        (recorded(10), ready("False", 10), at(195), 10),
        (recorded(10), ready("False", 8), at(195), 10),  # the virtual node's clock is behind
        (recorded(10), ready("False", 150), at(195), 150),  # it was Ready after the record
        (recorded(10), ready("False", 900), at(195), 200),  # its clock is ahead
        (recorded(10), ready("Unknown", 50), at(10), 10),  # Kubernetes noticed the silence later
        (recorded(10), ready("Unknown", 50), at(120), 120),  # its process ran after the record
        (recorded(10), ready("True", 0), at(10), 10),  # only its Lease is silent
        (recorded(10), ready("True", 0), at(120), 120),
        (recorded(10), ready("True", 0), "", 10),
        (recorded(500), ready("False", 10), at(195), 200),  # the earlier leader's clock was ahead
    ],
)
def test_recorded_silence_counts_unless_the_node_was_healthy_since(
    before: Silence | None, status: Any, renewed: str, since: float
):
    found = continued(before, status, renewed, observed=START + timedelta(seconds=200))
    assert found == START + timedelta(seconds=since)


@pytest.mark.parametrize(
    ("has_lower_node", "now", "left"),
    [(False, 30, 0), (False, 400, 0), (True, 30, 270), (True, 299, 1), (True, 301, -1)],
)
def test_only_pods_with_a_lower_node_wait(has_lower_node, now, left):
    lost = lost_nodes()
    assert lost.seconds_until_move("a", has_lower_node=has_lower_node, now=now) == left


@pytest.mark.parametrize(
    ("duration", "now", "is_lost"),
    [
        (40, 20, False),
        (40, 21, True),
        (120, 60, False),
        (120, 61, True),
        (1000, 499, False),
        (1000, 501, True),
    ],
)
def test_long_lease_delays_all_moves(duration, now, is_lost):
    """Half of its duration can be longer than the time of running pods."""
    lost = lost_nodes(duration=duration)
    lost.heartbeats.observe("b", "later", duration=duration, now=now)
    lost.heartbeats.resumed_at = 0
    assert lost.is_lost("a", now=now) is is_lost


def lost_nodes(*, duration: float = 40) -> LostNodes:
    """Return the state after node a was lost because its Lease is silent since 0."""
    lost = LostNodes(stale_after=20, move_running_after=300)
    lost.heartbeats.observe("a", "t", duration=duration, now=0)
    lost.mark("a", recorded(0), now=0, wall=START)
    return lost


def test_taint_alone_moves_no_pods():
    """The next leader must see the silence, too."""
    annotations = {names.ANNOTATION_SILENCE: silences.render(recorded(-1000))}
    taint = {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule", "timeAdded": at(-980)}
    body = node("a", ready=False, taints=[taint])
    body["metadata"] |= {"annotations": annotations}
    lost = LostNodes(stale_after=20, move_running_after=300)
    lost.observe(from_dict({"apiVersion": "v1", "kind": "Node", **body}), now=0)
    assert not lost.is_lost("a", now=1000)
    assert lost.due("a") == 20

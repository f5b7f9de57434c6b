"""The silence of a lower cluster on its virtual node, and which pods may run meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.moving import movable, silence
from clusterset.model.moving.silence import Silence

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
SILENCE = Silence(since=BEGAN, running_pods_move_at=BEGAN + timedelta(seconds=300))
TEXT = '{"since":"2026-01-01T00:00:00Z","runningPodsMoveAt":"2026-01-01T00:05:00Z"}'
TAINT = {"key": names.TAINT_STALE_CLUSTER, "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "silent for 0 s; running pods move in 305 s"),  # the reader's clock is behind
        (42, "silent for 42 s; running pods move in 258 s"),
        (299.4, "silent for 299 s; running pods move in 1 s"),
        (300, "silent for 300 s; running pods move to clusters with room"),
        (4000, "silent for 4000 s; running pods move to clusters with room"),
    ],
)
def test_text_counts_down(seconds: float, text: str):
    assert SILENCE.text(BEGAN + timedelta(seconds=seconds)) == text


@pytest.mark.parametrize(
    ("text", "taints", "found"),
    [
        (TEXT, [TAINT], SILENCE),
        (TEXT, [], None),  # an administrator has removed the taint
        (None, [TAINT], None),  # an earlier version added the taint
        ("", [TAINT], None),
        ("[]", [TAINT], None),
        ('{"since":"2026-01-01T00:00:00","runningPodsMoveAt":"2026-01-01T00:05:00Z"}', [TAINT], None),
        ('{"since":"soon","runningPodsMoveAt":"2026-01-01T00:05:00Z"}', [TAINT], None),
    ],
)
def test_silence_of_node_needs_taint_and_valid_annotation(text: str | None, taints: list[Any], found: Any):
    annotations = {} if text is None else {names.ANNOTATION_SILENCE: text}
    node = {"metadata": {"name": "a", "annotations": annotations}, "spec": {"taints": taints}}
    assert silence.of_node(node) == found


def test_annotation_is_readable():
    assert silence.render(SILENCE) == TEXT


@pytest.mark.parametrize(
    ("ready", "silent"),
    [
        ({"status": "True", "reason": "KubeletReady"}, False),
        ({"status": "False", "reason": "LowerClusterUnreachable"}, True),
        ({"status": "Unknown", "reason": "NodeStatusUnknown"}, True),
        ({"status": "False", "reason": "NoReadyLowerNodes"}, False),
    ],
)
def test_cluster_with_unready_nodes_is_not_silent(ready, silent):
    assert silence.is_silent({"conditions": [{"type": "Ready", **ready}]}) is silent


MIRRORED = {names.ANNOTATION_LOWER_UID: "below/above"}
PLACED = MIRRORED | {names.ANNOTATION_LOWER_NODE: "n1"}


@pytest.mark.parametrize(
    ("annotations", "phase", "scheduled", "has_node"),
    [
        ({}, "Pending", None, False),
        ({}, "Pending", "True", False),  # set by the upper API server
        (MIRRORED, "Pending", None, False),
        (MIRRORED, "Pending", "False", False),
        (MIRRORED, "Pending", "True", False),  # still that of the upper API server
        (PLACED, "Pending", "True", True),
        (MIRRORED, "Running", "True", True),
        ({}, "Running", None, True),
        ({}, "Unknown", None, True),
    ],
)
def test_pod_has_lower_node_once_the_lower_scheduler_reports_it(annotations, phase, scheduled, has_node):
    conditions = [] if scheduled is None else [{"type": "PodScheduled", "status": scheduled}]
    status = {"phase": phase, "conditions": conditions}
    assert movable.has_lower_node({"annotations": annotations}, status) is has_node

"""Which pods are stuck, which may be moved, and when. Pure functions without a cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.moving import movable
from controller_runtime.apimachinery import timestamps
from descheduler import memory, pods
from descheduler.config import EvictionOptions, Limits
from descheduler.memory import History, Verdict
from descheduler.moving.mover import PassLimits
from descheduler.strategies import unschedulable
from tests.unit.descheduler.bodies import START, cached, pod

LATER = START + timedelta(seconds=100)
VOLUMES = {"volumes": [{"name": "v", "emptyDir": {}}]}


def waiting(reason: str) -> dict[str, Any]:
    """Return a scheduled pod with a waiting container."""
    body = pod(refused_at=None)
    body["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": reason}}}]
    return body


def refused(reason: str) -> dict[str, Any]:
    """Return a pod that its lower cluster did not admit."""
    body = pod(refused_at=None)
    body["status"]["conditions"].append(
        {
            "type": names.CONDITION_ADMITTED,
            "status": "False",
            "reason": reason,
            "message": "no",
            "lastTransitionTime": timestamps.rfc3339(LATER),
        }
    )
    return body


class TestStuck:
    """Which pods their lower cluster cannot start."""

    def test_bound_pod_with_scheduled_false_is_stuck_since_transition(self):
        found = unschedulable.find(cached(pod(refused_at=LATER)))
        assert found == unschedulable.Stuck("Unschedulable", "0/3 nodes are available", LATER)

    def test_slow_lower_clock_does_not_date_before_creation(self):
        found = unschedulable.find(cached(pod(refused_at=START - timedelta(hours=1))))
        assert found is not None
        assert found.since == START

    @pytest.mark.parametrize(
        "body",
        [
            pod(on=""),
            pod(phase="Running"),
            pod(refused_at=None),
            pod(deletionTimestamp="2026-01-01T00:00:00Z"),
            waiting("ContainerCreating"),
            waiting("ImagePullBackOff"),
            refused("ExceededQuota"),
        ],
        ids=["unbound", "running", "scheduled", "ending", "slow", "image", "quota"],
    )
    def test_unbound_started_ending_and_slow_pods_are_not_stuck(self, body):
        assert unschedulable.find(cached(body)) is None

    def test_lower_pod_with_scheduling_gates_is_not_stuck(self):
        body = pod()
        body["status"]["conditions"][0]["reason"] = "SchedulingGated"
        assert unschedulable.find(cached(body)) is None

    @pytest.mark.parametrize(
        ("body", "failures", "reason"),
        [
            (waiting("ImagePullBackOff"), ["image"], "ImagePullBackOff"),
            (waiting("ErrImagePull"), ["quota"], None),
            (refused("ExceededQuota"), ["quota"], "ExceededQuota"),
            (refused("ExceededQuota"), ["admission"], None),
            (refused("Forbidden"), ["admission"], "Forbidden"),
        ],
    )
    def test_failures_count_only_if_configured(self, body, failures, reason):
        found = unschedulable.find(pods.shrink(cached(body)), failures=failures)
        assert (found and found.reason) == reason


class TestEvictable:
    """The table of tensile-kube (TestIsEvictable), and additional cases."""

    @pytest.mark.parametrize(
        ("body", "movable"),
        [
            (pod(), True),
            (pod(owner="rs"), True),
            (pod(owner="ds", kind="DaemonSet"), False),
            (pod(owner="ds", kind="DaemonSet", annotations={movable.ANNOTATION_EVICT: ""}), True),
            (pod(annotations={"kubernetes.io/config.mirror": "x"}), False),
            (pod(annotations={"kubernetes.io/config.mirror": "x", movable.ANNOTATION_EVICT: "true"}), True),
            (pod(spec={"priority": 2_000_000_000}), False),
            (pod(spec={"priority": 2_000_000_000}, annotations={movable.ANNOTATION_EVICT: "true"}), True),
            (pod(spec={"priority": 1_999_999_999}), True),
            (pod(spec=VOLUMES), False),
            (pod(spec=VOLUMES, annotations={movable.ANNOTATION_EVICT: "true"}), True),
            (pod(spec={"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), False),
            (pod(spec={"volumes": [{"name": "v", "configMap": {"name": "c"}}]}), True),
            (pod(phase="Succeeded"), False),
            (
                pod(deletionTimestamp="2026-01-01T00:00:00Z", annotations={movable.ANNOTATION_EVICT: "true"}),
                False,
            ),
        ],
    )
    def test_which_pods_may_be_moved_by_default(self, body, movable):
        assert (pods.why_not_evictable(pods.shrink(cached(body))) == "") is movable

    def test_options_allow_local_storage_and_system_priority(self):
        assert not pods.why_not_evictable(pods.shrink(cached(pod(spec=VOLUMES))), local_storage=True)
        critical = cached(pod(spec={"priority": 2_000_001_000}))
        assert not pods.why_not_evictable(critical, system_critical=True)

    def test_owner_key_has_bounded_length(self):
        assert pods.owner_key(cached(pod(owner="rs"))) == "default.rs"
        assert pods.owner_key(cached(pod())) == "default.pod.p"
        assert len(pods.owner_key(cached(pod("p" * 253)))) == 72

    def test_pods_of_kube_system_stay_despite_annotation(self):
        body = pod(annotations={movable.ANNOTATION_EVICT: "true"})
        body["metadata"]["namespace"] = "kube-system"
        assert pods.why_not_evictable(cached(body)) == "it is in kube-system"


class TestHistory:
    """Rounds, back-off, maximum and window."""

    LIMITS = Limits(backoff=60, backoff_maximum=200, rounds=4, window=1000)

    @pytest.mark.parametrize(
        ("rounds", "since", "verdict", "wait"),
        [
            (1, 10, Verdict.WAIT, 50),
            (1, 60, Verdict.NEW_ROUND, 0),
            (2, 60, Verdict.WAIT, 60),
            (3, 100, Verdict.WAIT, 100),
            (3, 200, Verdict.NEW_ROUND, 0),
            (4, 200, Verdict.GIVE_UP, 800),
            (4, 1001, Verdict.NEW_ROUND, 0),
        ],
    )
    def test_waits_for_backoff_and_gives_up_until_window_ends(self, rounds, since, verdict, wait):
        now = LATER + timedelta(seconds=since)
        decision = memory.decide(History(rounds, LATER), created=LATER, now=now, limits=self.LIMITS)
        assert (decision.verdict, decision.wait) == (verdict, wait)

    def test_pod_older_than_last_round_belongs_to_it_unless_bare(self):
        args: dict[str, Any] = {"created": START, "now": LATER, "limits": self.LIMITS}
        assert memory.decide(History(1, LATER), **args).verdict is Verdict.SAME_ROUND
        assert memory.decide(History(1, LATER), **args, is_bare=True).verdict is Verdict.WAIT

    def test_parse_reads_rendered_history_and_skips_others(self):
        entry = History(3, LATER)
        data = {"o": entry.render("ns"), "x": "{", "y": '{"rounds": 1}', "z": "[]"}
        assert memory.parse(data) == {"o": entry}


class TestLimits:
    """Moves per pass."""

    def test_limits_per_node_namespace_and_total_until_next_pass(self):
        limits = PassLimits(
            EvictionOptions(max_per_node=1, max_per_namespace=2, max_total=3, pass_seconds=60)
        )
        assert limits.take("a", "x", now=0) == 0
        assert limits.take("a", "y", now=10) == 50
        assert limits.take("b", "x", now=10) == 0
        assert limits.take("c", "x", now=10) == 50
        assert limits.take("c", "y", now=10) == 0
        assert limits.take("d", "z", now=20) == 40
        assert limits.take("a", "x", now=60) == 0

    def test_move_that_was_given_back_does_not_count(self):
        limits = PassLimits(EvictionOptions(max_per_node=1))
        limits.take("a", "x", now=0)
        limits.give_back("a", "x", taken=0)
        assert limits.take("a", "x", now=1) == 0

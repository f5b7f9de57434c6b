"""Which pods are stuck, which of them may go, and when: judged without a cluster."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from controller_runtime.api import names, timestamps
from descheduler.config.move_limits import Limits
from descheduler.config.options import EvictionOptions
from descheduler.memory import history
from descheduler.memory.history import History, Verdict
from descheduler.moving.limits import PassLimits
from descheduler.view import pods, unschedulable
from tests.unit.descheduler.bodies import START, cached, pod

LATER = START + timedelta(seconds=100)
VOLUMES = {"volumes": [{"name": "v", "emptyDir": {}}]}


def waiting(reason: str) -> dict[str, Any]:
    """A pod that its lower cluster has taken and whose container waits."""
    whole = pod(refused_at=None)
    whole["status"]["containerStatuses"] = [{"state": {"waiting": {"reason": reason}}}]
    return whole


def refused(reason: str) -> dict[str, Any]:
    """A pod that its lower cluster did not take."""
    whole = pod(refused_at=None)
    whole["status"]["conditions"].append(
        {
            "type": names.CONDITION_ADMITTED,
            "status": "False",
            "reason": reason,
            "message": "no",
            "lastTransitionTime": timestamps.rfc3339(LATER),
        }
    )
    return whole


class TestStuck:
    """Which pods their lower cluster cannot start."""

    def test_refused_by_the_lower_scheduler(self):
        """PodScheduled=False on a bound pod is the lower scheduler's word; its time is since when."""
        found = unschedulable.find(cached(pod(refused_at=LATER)))
        assert found == unschedulable.Stuck("Unschedulable", "0/3 nodes are available", LATER)

    def test_clock_of_the_lower_cluster(self):
        """A lower clock that is slow does not make a pod stuck before it existed."""
        found = unschedulable.find(cached(pod(refused_at=START - timedelta(hours=1))))
        assert found is not None
        assert found.since == START

    @pytest.mark.parametrize(
        "whole",
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
    def test_others(self, whole):
        """Unbound, started, ending and slow pods are not stuck, nor are failures that were not asked for."""
        assert unschedulable.find(cached(whole)) is None

    def test_gated_below(self):
        """A lower pod held by scheduling gates is nobody's failure."""
        whole = pod()
        whole["status"]["conditions"][0]["reason"] = "SchedulingGated"
        assert unschedulable.find(cached(whole)) is None

    @pytest.mark.parametrize(
        ("whole", "failures", "reason"),
        [
            (waiting("ImagePullBackOff"), ["image"], "ImagePullBackOff"),
            (waiting("ErrImagePull"), ["quota"], None),
            (refused("ExceededQuota"), ["quota"], "ExceededQuota"),
            (refused("ExceededQuota"), ["admission"], None),
            (refused("Forbidden"), ["admission"], "Forbidden"),
        ],
    )
    def test_failures(self, whole, failures, reason):
        """Image, quota and admission failures count where they are asked for, each alone."""
        found = unschedulable.find(pods.shrink(cached(whole)), failures=failures)
        assert (found and found.reason) == reason


class TestEvictable:
    """tensile-kube's table (TestIsEvictable), and ours."""

    @pytest.mark.parametrize(
        ("whole", "may_go"),
        [
            (pod(), True),
            (pod(owner="rs"), True),
            (pod(owner="ds", kind="DaemonSet"), False),
            (pod(owner="ds", kind="DaemonSet", annotations={pods.ANNOTATION_EVICT: ""}), True),
            (pod(annotations={"kubernetes.io/config.mirror": "x"}), False),
            (pod(annotations={"kubernetes.io/config.mirror": "x", pods.ANNOTATION_EVICT: "true"}), True),
            (pod(spec={"priority": 2_000_000_000}), False),
            (pod(spec={"priority": 2_000_000_000}, annotations={pods.ANNOTATION_EVICT: "true"}), True),
            (pod(spec={"priority": 1_999_999_999}), True),
            (pod(spec=VOLUMES), False),
            (pod(spec=VOLUMES, annotations={pods.ANNOTATION_EVICT: "true"}), True),
            (pod(spec={"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}), False),
            (pod(spec={"volumes": [{"name": "v", "configMap": {"name": "c"}}]}), True),
            (pod(phase="Succeeded"), False),
            (
                pod(deletionTimestamp="2026-01-01T00:00:00Z", annotations={pods.ANNOTATION_EVICT: "true"}),
                False,
            ),
        ],
    )
    def test_defaults(self, whole, may_go):
        """Who may go without any option."""
        assert (pods.why_not_evictable(pods.shrink(cached(whole))) == "") is may_go

    def test_options(self):
        """Local storage and system priority are matters of options."""
        assert not pods.why_not_evictable(pods.shrink(cached(pod(spec=VOLUMES))), local_storage=True)
        critical = cached(pod(spec={"priority": 2_000_001_000}))
        assert not pods.why_not_evictable(critical, system_critical=True)

    def test_owner_key(self):
        """A controller's uid, or the pod's own name, within the namespace; never longer than a ConfigMap's key may be."""
        assert pods.owner_key(cached(pod(owner="rs"))) == "default.rs"
        assert pods.owner_key(cached(pod())) == "default.pod.p"
        assert len(pods.owner_key(cached(pod("p" * 253)))) == 72

    def test_kube_system(self):
        """kube-system is out of bounds, whatever its pods say."""
        whole = pod(annotations={pods.ANNOTATION_EVICT: "true"})
        whole["metadata"]["namespace"] = "kube-system"
        assert pods.why_not_evictable(cached(whole)) == "it is in kube-system"


class TestHistory:
    """Rounds, back-off, cap and window."""

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
    def test_decide(self, rounds, since, verdict, wait):
        """A pod made after the last round waits for the back-off, or is given up until the window is over."""
        now = LATER + timedelta(seconds=since)
        decision = history.decide(History(rounds, LATER), created=LATER, now=now, limits=self.LIMITS)
        assert (decision.verdict, decision.wait) == (verdict, wait)

    def test_same_round(self):
        """A pod older than the last round belongs to it; a bare pod has a round of its own."""
        args: dict[str, Any] = {"created": START, "now": LATER, "limits": self.LIMITS}
        assert history.decide(History(1, LATER), **args).verdict is Verdict.SAME_ROUND
        assert history.decide(History(1, LATER), **args, is_bare=True).verdict is Verdict.WAIT

    def test_round_trip(self):
        """What is written is read; what others write is left out."""
        entry = History(3, LATER)
        data = {"o": entry.render("ns"), "x": "{", "y": '{"rounds": 1}', "z": "[]"}
        assert history.parse(data) == {"o": entry}


class TestLimits:
    """Moves per pass."""

    def test_each_limit(self):
        """Per node, per namespace and in total; a new pass starts anew."""
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

    def test_give_back(self):
        """What did not take place does not count."""
        limits = PassLimits(EvictionOptions(max_per_node=1))
        limits.take("a", "x", now=0)
        limits.give_back("a", "x", taken=0)
        assert limits.take("a", "x", now=1) == 0

"""The pure parts: who is stuck, who may go, history, replacement, avoidance, selectors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.api import matching, names, timestamps
from descheduler import history, pods, replacement, stuck
from descheduler.history import History, Limits, Verdict
from descheduler.limits import PassLimits
from descheduler.options import EvictionOptions
from tests.unit.controller_runtime.api.affinity import excluded
from tests.unit.descheduler.bodies import START, cached, node, pod

LATER = START + timedelta(seconds=100)


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
        found = stuck.find(cached(pod(refused_at=LATER)))
        assert found == stuck.Stuck("Unschedulable", "0/3 nodes are available", LATER)

    def test_clock_of_the_lower_cluster(self):
        """A lower clock that is slow does not make a pod stuck before it existed."""
        found = stuck.find(cached(pod(refused_at=START - timedelta(hours=1))))
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
        assert stuck.find(cached(whole)) is None

    def test_gated_below(self):
        """A lower pod held by scheduling gates is nobody's failure."""
        whole = pod()
        whole["status"]["conditions"][0]["reason"] = "SchedulingGated"
        assert stuck.find(cached(whole)) is None

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
        found = stuck.find(pods.shrink(cached(whole)), failures=failures)
        assert (found and found.reason) == reason


VOLUMES = {"volumes": [{"name": "v", "emptyDir": {}}]}


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
        """A controller's uid, or the pod's own name, never longer than a ConfigMap's key may be."""
        assert pods.owner_key(cached(pod(owner="rs"))) == "rs"
        assert pods.owner_key(cached(pod())) == "pod.default.p"
        assert len(pods.owner_key(cached(pod("p" * 253)))) == 68

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


def of(
    whole: dict[str, Any], *, avoid: dict[str, Any] | None = None, on: str = "a", usable: str = "abc"
) -> Any:
    """A replacement."""
    given = {"uid": "u", "resourceVersion": "1"}
    body = {**whole, "metadata": {**given, **whole["metadata"]}}
    return replacement.of(body, avoid=avoid or {}, node=on, usable=set(usable), now=LATER)


class TestReplacement:
    """The pod that takes a bare pod's place."""

    def test_label_keys_are_not_told_twice(self):
        """The apiserver has added them to the selector already, and would refuse what names them in both."""
        selector = {"matchExpressions": [{"key": "rev", "operator": "In", "values": ["7"]}]}
        constraint = {"labelSelector": selector, "matchLabelKeys": ["rev"], "maxSkew": 1}
        found = of(pod(spec={"topologySpreadConstraints": [constraint]}))
        assert found["spec"]["topologySpreadConstraints"] == [{"labelSelector": selector, "maxSkew": 1}]

    def test_what_stays_and_what_goes(self):
        """The user's fields stay; the server's and the old node's go."""
        whole = pod(
            labels={"app": "x"},
            annotations={"clusterSelector": "{}", names.ANNOTATION_LOWER_UID: "l", "mine": "1"},
            finalizers=["f"],
            generateName="p-",
            creationTimestamp="2026-01-01T00:00:00Z",
        )
        whole["spec"] |= {"priority": 5, "preemptionPolicy": "Never", "ephemeralContainers": [{}], "new": 1}
        found = of(whole)
        assert set(found) == {"apiVersion", "kind", "metadata", "spec"}
        assert found["metadata"] == {
            "name": "p",
            "namespace": "default",
            "labels": {"app": "x", "create-by-descheduler": "true"},
            "finalizers": ["f"],
            "annotations": {
                "clusterSelector": "{}",
                "mine": "1",
                "sigs.k8s.io/deschedule-count": "1",
                "unschedulable-node": "a",
                names.ANNOTATION_REPLACES: "u",
                names.ANNOTATION_UNSCHEDULABLE_NODES: '{"a":"2026-01-01T00:01:40Z"}',
            },
        }
        assert set(found["spec"]) == {"containers", "tolerations", "new", "affinity"}

    def test_second_time(self):
        """The count grows, nodes add up, and the affinity names each once."""
        first = of(pod())
        first["spec"]["nodeName"] = "b"
        second = of(first, avoid={"a": START}, on="b")
        assert second["metadata"]["annotations"][names.ANNOTATION_DESCHEDULE_COUNT] == "2"
        assert excluded(second["spec"]) == [["a", "b"]]

    @pytest.mark.parametrize(
        ("on", "avoid", "usable", "left"),
        [
            ("b", "a", "abc", ["a", "b"]),
            ("b", "a", "ab", ["b"]),
            ("a", "", "a", []),
            ("", "ab", "ab", ["b"]),
            ("", "a", "ab", ["a"]),
            ("b", "a", "", ["a", "b"]),
        ],
    )
    def test_gives_way(self, on, avoid, usable, left):
        """No pod is made to avoid every node that is ready."""
        found = of(pod(), on=on, avoid=dict.fromkeys(avoid, START), usable=usable)
        assert excluded(found["spec"]) == ([left] if left else [])

    @pytest.mark.parametrize("text", ["", "x", "-1", "٣", "9" * 50])
    def test_count_by_others(self, text):
        """A count that is none counts as none."""
        assert (
            replacement.count({"metadata": {"annotations": {names.ANNOTATION_DESCHEDULE_COUNT: text}}}) == 0
        )

    @pytest.mark.parametrize("text", ["{", "[]", '{"a": 1}', '{"a": "today"}', "null"])
    def test_avoidance_by_others(self, text):
        """An annotation that cannot be read avoids nothing."""
        assert replacement.noted({names.ANNOTATION_UNSCHEDULABLE_NODES: text}) == {}


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


@given(st.sets(st.sampled_from("abcd")), st.sets(st.sampled_from("abcd"), min_size=1))
def test_some_node_is_always_left(avoid: set[str], usable: set[str]):
    """Whatever a pod avoids, unless its own node is the only one it may go to one that is ready."""
    found = of(pod(), avoid=dict.fromkeys(avoid, START), on="a", usable="".join(usable))
    banned = {name for values in excluded(found["spec"]) for name in values}
    assert usable - banned
    labels = [node(name)["metadata"]["labels"] for name in usable]
    spec = found["spec"]
    assert any(matching.admits(spec, name="n", labels=each, taints=[]) for each in labels)

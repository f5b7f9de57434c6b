"""Every reason why a pod does not run has a verdict, with evidence and a next step."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller_runtime.apimachinery import timestamps
from tests.unit.virtual_node.examine.health_objects import lease
from virtual_node.commands.common.output import age
from virtual_node.commands.status.rows import describe
from virtual_node.examine import engine, rules
from virtual_node.examine.codes import Code
from virtual_node.examine.engine import in_depth
from virtual_node.examine.finding import Finding
from virtual_node.examine.pod_view import PodView
from virtual_node.node_summary import summarize, summary_of

rules.load()
NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODE: dict[str, Any] = {
    "metadata": {"name": "vn", "labels": {"type": "virtual-kubelet", "clusterID": "a"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def _view(
    *, status: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **more: Any
) -> PodView:
    pod = {
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", **more.pop("metadata", {})},
        "spec": {"nodeName": "vn", "containers": [{"name": "c"}], **(spec or {})},
        "status": {"phase": "Pending", **(status or {})},
    }
    defaults: dict[str, Any] = {
        "node": NODE, "lease": lease(), "lower": None, "events": [], "virtual_nodes": [NODE], "now": NOW,
    }  # fmt: skip
    return PodView(pod=pod, **{**defaults, **more})


def _waiting(reason: str, message: str = "") -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"containerStatuses": [{"name": "c", "image": "img", "state": state}]}


def _conditions(kind: str, reason: str = "", message: str = "", status: str = "False") -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": status, "reason": reason, "message": message}]}


CRASH = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "c",
            "restartCount": 4,
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 3, "reason": "Error"}},
        }
    ],
}
UNPLACED = {"nodeName": ""}


@pytest.mark.parametrize(
    ("view", "verdict"),
    [
        (_view(spec=UNPLACED, virtual_nodes=[]), "no virtual node"),
        (_view(spec={**UNPLACED, "schedulingGates": [{"name": "g"}]}), "Scheduling gates"),
        (_view(spec={**UNPLACED, "nodeSelector": {"gpu": "yes"}}), "not labelled virtual-pod=true"),
        (
            _view(
                spec={**UNPLACED, "nodeSelector": {"gpu": "yes"}},
                metadata={"labels": {"virtual-pod": "true"}},
            ),
            "webhook has not moved",
        ),
        (
            _view(
                spec=UNPLACED,
                status=_conditions("PodScheduled", message="untolerated taint {x: }"),
                virtual_nodes=[{**NODE, "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}],
            ),
            "does not tolerate x:NoSchedule",
        ),
        (
            _view(spec=UNPLACED, status=_conditions("PodScheduled", message="2 Insufficient cpu")),
            "enough free resources",
        ),
        (
            _view(spec=UNPLACED, status=_conditions("PodScheduled", message="1 lower cluster a: 0/3 nodes")),
            "No lower cluster",
        ),
        (_view(metadata={"annotations": {"clusterSelector": "{"}}), "clusterSelector"),
        (_view(node=None), "does not exist"),
        (
            _view(node={**NODE, "status": _conditions("Ready", "LowerClusterUnreachable", "no answer")}),
            "Lower cluster vn is lost",
        ),
        (
            _view(node={**NODE, "status": _conditions("Ready", "NoReadyLowerNodes", "None of 2")}),
            "not Ready",
        ),
        (_view(lease=lease(500.0)), "has sent no heartbeat"),
        (
            _view(status=_conditions("virtual-node.io/Admitted", "ExceededQuota", "exceeded quota: q")),
            "ResourceQuota",
        ),
        (_view(status=_conditions("virtual-node.io/Admitted", "PodSecurity")), "Pod Security"),
        (_view(status=_conditions("virtual-node.io/Admitted", "Weird")), "refuses the pod"),
        (_view(events=[{"reason": "NameConflict", "message": "m"}]), "not ours"),
        (
            _view(status=_waiting("CreateContainerConfigError", 'configmap "x" not found')),
            'configmap "x" not found',
        ),
        (_view(events=[{"reason": "FailedMount", "message": "claim"}]), "volume"),
        (_view(status=_conditions("PodScheduled", "Unschedulable", "0/3 nodes")), "lower scheduler"),
        (_view(status=_waiting("ImagePullBackOff", "denied")), "cannot pull img"),
        (_view(status=CRASH, logs=["boom"]), "crashes repeatedly"),
        (
            _view(
                status={
                    "phase": "Failed",
                    "containerStatuses": [
                        {"name": "c", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}}
                    ],
                }
            ),
            "more memory",
        ),
        (
            _view(
                status={"phase": "Running", **_conditions("Ready")},
                events=[{"reason": "Unhealthy", "message": "Readiness probe failed"}],
            ),
            "probe fails",
        ),
        (
            _view(
                status={
                    "phase": "Running",
                    "conditions": [
                        {"type": "Ready", "status": "False"},
                        {"type": "ContainersReady", "status": "True"},
                    ],
                },
            ),
            "marked not ready because its virtual node was not Ready",
        ),
        (
            _view(
                metadata={
                    "deletionTimestamp": timestamps.rfc3339(NOW - timedelta(minutes=10)),
                    "finalizers": ["theirs/f"],
                }
            ),
            "finalizers: theirs/f",
        ),
        (
            _view(metadata={"deletionTimestamp": timestamps.rfc3339(NOW - timedelta(minutes=10))}),
            "should have ended",
        ),
        (
            _view(status={"phase": "Failed", "reason": "LowerPodDeleted", "message": "m"}),
            "was deleted in the lower cluster",
        ),
        (_view(is_lower_read=True), "no lower pod yet"),
        (_view(status={"phase": "Running"}), "nothing is wrong"),
        (_view(), "nothing explains it"),
    ],
)
def test_the_first_finding_is_the_reason(view, verdict):
    assert verdict in in_depth(view)[0].cause


def test_a_crash_is_shown_with_the_end_of_its_log():
    """Exit code, restarts, log lines, and the command that shows more."""
    finding = in_depth(_view(status=CRASH, logs=["one", "boom"]))[0]
    assert finding.evidence == ["exit code 3, Error, 4 restarts", "one", "boom"]
    assert finding.next_steps == ["kubectl -n shop logs web -c c --previous"]


@pytest.mark.parametrize(
    ("status", "title"),
    [
        (
            _conditions("Ready", "ContainersNotReady", "containers with unready status: [c proxy]"),
            "Container proxy, which the lower cluster added, is not ready.",
        ),
        (
            _conditions(
                "Initialized", "ContainersNotInitialized", "containers with incomplete status: [init]"
            ),
            "Container init, which the lower cluster added, is not ready.",
        ),
        (
            {"message": "The pod finishes after proxy: a container that was added"},
            "A container that the lower cluster added keeps the pod from finishing.",
        ),
    ],
)
def test_a_container_that_the_lower_cluster_added_is_the_cause(status, title):
    """The upper pod has no status of it."""
    first = in_depth(_view(status={"phase": "Running", **status}))[0]
    assert (first.code, first.cause) == ("AddedContainer", title)


def test_a_new_condition_is_one_rule(monkeypatch):
    """A rule of level POD is shown for the pod by all tools and by diagnose, in place of fallbacks."""
    monkeypatch.setattr(engine, "RULES", list(engine.RULES))
    pod = _view(status=_waiting("ErrImagePull", "denied")).pod

    @engine.rule(Code.POD_REFUSED, level=engine.Level.POD)
    def haunted(pod, virtual_nodes):
        yield Finding(
            code=Code.POD_REFUSED, kind="Pod", names=["shop/web"], cause="A ghost holds it.", evidence=["boo"]
        )

    assert [one.cause for one in engine.of_pod(pod, ["vn"])] == ["A ghost holds it."]
    shown = in_depth(_view(status=_waiting("ErrImagePull", "denied")))
    assert [one.cause for one in shown] == ["A ghost holds it.", "The lower node cannot pull img."]


def test_a_rule_that_fails_does_not_hide_others(monkeypatch):
    """Objects may have any content."""
    monkeypatch.setattr(engine, "RULES", list(engine.RULES))

    @engine.detail(Code.POLICY)
    @engine.rule(Code.POLICY, level=engine.Level.POD)
    def broken(*given):
        raise ZeroDivisionError

    view = _view(status=_waiting("ErrImagePull", "denied"))
    assert [one.code for one in in_depth(view)] == [Code.IMAGE_AUTH, Code.RULE_FAILED, Code.RULE_FAILED]
    assert [one.code for one in engine.of_pod(view.pod, ["vn"])] == [Code.RULE_FAILED, Code.POD_FAILING]
    assert in_depth(_view(status={"phase": "Running"}))[-1].code is Code.HEALTHY


def test_status_describes_a_virtual_node():
    """Counts, usage and heartbeat, from plain objects."""
    node = {
        "metadata": {
            "name": "vn",
            "creationTimestamp": "2025-12-31T00:00:00Z",
            "labels": {"virtual-node.io/lower-cluster": "a"},
        },
        "status": {
            **_conditions("Ready", status="True"),
            "allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"},
            "nodeInfo": {"kubeletVersion": "v1.34.4"},
        },
    }
    spec = {"containers": [{"name": "c", "resources": {"requests": {"cpu": "500m"}}}]}
    pods = [
        {"metadata": {"namespace": "n", "name": str(number)}, "spec": spec, "status": {"phase": phase}}
        for number, phase in enumerate(["Running", "Pending", "Succeeded"])
    ]
    lease = {"spec": {"renewTime": timestamps.rfc3339(NOW - timedelta(seconds=5))}}
    found = describe(node, summarize(map(summary_of, pods)), lease, now=NOW)
    assert (found["ready"], found["cluster"], found["version"]) == ("True", "a", "v1.34.4")
    assert found["pods"] == {"total": 3, "running": 1, "trouble": 1}
    assert found["resources"]["cpu"] == {"used": "1", "allocatable": "4"}
    assert (found["heartbeatSeconds"], found["ageSeconds"]) == (5.0, 86400.0)


@pytest.mark.parametrize(
    ("seconds", "text"), [(-1, "0s"), (45, "45s"), (720, "12m"), (10800, "3h"), (500000, "5d")]
)
def test_ages_have_kubectls_format(seconds, text):
    """One number, one letter."""
    assert age(seconds) == text

"""Every reason why a pod does not run has a verdict, with evidence and a next step."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controller_runtime.apimachinery import timestamps
from tests.unit.virtual_node.examine.health_objects import lease
from virtual_node.commands.common.output import age
from virtual_node.commands.diagnose.facts import PodFacts
from virtual_node.commands.diagnose.verdict import diagnose
from virtual_node.commands.status.rows import describe

NOW = datetime(2026, 1, 1, tzinfo=UTC)
NODE: dict[str, Any] = {
    "metadata": {"name": "vn", "labels": {"type": "virtual-kubelet", "clusterID": "a"}},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def _facts(
    *, status: dict[str, Any] | None = None, spec: dict[str, Any] | None = None, **more: Any
) -> PodFacts:
    pod = {
        "metadata": {"namespace": "shop", "name": "web", "uid": "u", **more.pop("metadata", {})},
        "spec": {"nodeName": "vn", "containers": [{"name": "c"}], **(spec or {})},
        "status": {"phase": "Pending", **(status or {})},
    }
    defaults: dict[str, Any] = {
        "node": NODE, "lease": lease(), "lower": None, "events": [], "virtual_nodes": [NODE], "now": NOW,
    }  # fmt: skip
    return PodFacts(pod=pod, **{**defaults, **more})


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
    ("facts", "verdict"),
    [
        (_facts(spec=UNPLACED, virtual_nodes=[]), "no virtual node"),
        (_facts(spec={**UNPLACED, "schedulingGates": [{"name": "g"}]}), "Scheduling gates"),
        (_facts(spec={**UNPLACED, "nodeSelector": {"gpu": "yes"}}), "not labelled virtual-pod=true"),
        (
            _facts(
                spec={**UNPLACED, "nodeSelector": {"gpu": "yes"}},
                metadata={"labels": {"virtual-pod": "true"}},
            ),
            "webhook has not moved",
        ),
        (
            _facts(
                spec=UNPLACED,
                status=_conditions("PodScheduled", message="untolerated taint {x: }"),
                virtual_nodes=[{**NODE, "spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}}],
            ),
            "does not tolerate x:NoSchedule",
        ),
        (
            _facts(spec=UNPLACED, status=_conditions("PodScheduled", message="2 Insufficient cpu")),
            "enough free resources",
        ),
        (
            _facts(spec=UNPLACED, status=_conditions("PodScheduled", message="1 lower cluster a: 0/3 nodes")),
            "No lower cluster",
        ),
        (_facts(metadata={"annotations": {"clusterSelector": "{"}}), "clusterSelector"),
        (_facts(node=None), "does not exist"),
        (
            _facts(node={**NODE, "status": _conditions("Ready", "LowerClusterUnreachable", "no answer")}),
            "Lower cluster vn is lost",
        ),
        (
            _facts(node={**NODE, "status": _conditions("Ready", "NoReadyLowerNodes", "None of 2")}),
            "not Ready",
        ),
        (_facts(lease=lease(500.0)), "has sent no heartbeat"),
        (
            _facts(status=_conditions("virtual-node.io/Admitted", "ExceededQuota", "exceeded quota: q")),
            "ResourceQuota",
        ),
        (_facts(status=_conditions("virtual-node.io/Admitted", "PodSecurity")), "Pod Security"),
        (_facts(status=_conditions("virtual-node.io/Admitted", "Weird")), "refuses the pod"),
        (_facts(events=[{"reason": "NameConflict", "message": "m"}]), "not ours"),
        (
            _facts(status=_waiting("CreateContainerConfigError", 'configmap "x" not found')),
            'configmap "x" not found',
        ),
        (_facts(events=[{"reason": "FailedMount", "message": "claim"}]), "volume"),
        (_facts(status=_conditions("PodScheduled", "Unschedulable", "0/3 nodes")), "lower scheduler"),
        (_facts(status=_waiting("ImagePullBackOff", "denied")), "cannot pull img"),
        (_facts(status=CRASH, logs=["boom"]), "crashes repeatedly"),
        (
            _facts(
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
            _facts(
                status={"phase": "Running", **_conditions("Ready")},
                events=[{"reason": "Unhealthy", "message": "Readiness probe failed"}],
            ),
            "probe fails",
        ),
        (
            _facts(
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
            _facts(
                metadata={
                    "deletionTimestamp": timestamps.rfc3339(NOW - timedelta(minutes=10)),
                    "finalizers": ["theirs/f"],
                }
            ),
            "finalizers: theirs/f",
        ),
        (
            _facts(metadata={"deletionTimestamp": timestamps.rfc3339(NOW - timedelta(minutes=10))}),
            "should have ended",
        ),
        (
            _facts(status={"phase": "Failed", "reason": "LowerPodDeleted", "message": "m"}),
            "was deleted in the lower cluster",
        ),
        (_facts(is_lower_read=True), "no lower pod yet"),
        (_facts(status={"phase": "Running"}), "nothing is wrong"),
        (_facts(), "nothing explains it"),
    ],
)
def test_the_first_finding_is_the_reason(facts, verdict):
    assert verdict in diagnose(facts)[0].title


def test_a_crash_is_shown_with_the_end_of_its_log():
    """Exit code, restarts, log lines, and the command that shows more."""
    finding = diagnose(_facts(status=CRASH, logs=["one", "boom"]))[0]
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
    first = diagnose(_facts(status={"phase": "Running", **status}))[0]
    assert (first.code, first.title) == ("AddedContainer", title)


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
    found = describe(node, pods, lease, now=NOW)
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

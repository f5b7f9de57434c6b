"""What a lower pod waits for: one table of pods and reasons."""

from __future__ import annotations

import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from controller_runtime.objects import from_dict
from virtual_node.examine.codes import Code
from virtual_node.translate.pods import waits
from virtual_node.translate.pods.waits import WaitReason

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
EARLIER, LATER = "2026-01-01T11:59:00Z", "2026-01-01T12:01:00Z"
READY: dict[str, Any] = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
LOST: dict[str, Any] = {
    "status": {"conditions": [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]}
}
MARKED = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": "False"}]
CREATING = {"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}
UNSCHEDULED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]


def pod(
    *, spec: dict[str, Any] | None = None, status: dict[str, Any] | None = None, **metadata: Any
) -> dict[str, Any]:
    """Return a pending lower pod."""
    return {
        "metadata": {"name": "web", "namespace": "shop", **metadata},
        "spec": {"nodeName": "n1", **(spec or {})},
        "status": {"phase": "Pending", **(status or {})},
    }


@pytest.mark.parametrize(
    ("lower", "node", "reason", "named"),
    [
        (pod(), READY, None, ""),
        (pod(), None, None, ""),
        (pod(), LOST, WaitReason.NODE, "Node n1 of lower cluster a is not Ready (NodeStatusUnknown)"),
        (pod(status={"containerStatuses": [CREATING]}), LOST, WaitReason.NODE, "does not start the pod"),
        (pod(status={"containerStatuses": [CREATING]}), READY, None, ""),
        (pod(status={"phase": "Running"}), LOST, None, ""),
        (
            pod(spec={"nodeName": "", "schedulingGates": [{"name": "b/x"}, {"name": "a"}]}),
            None,
            WaitReason.GATE,
            "a, b/x",
        ),
        (pod(spec={"nodeName": ""}), None, WaitReason.SCHEDULER, "default-scheduler"),
        (pod(spec={"nodeName": "", "schedulerName": "volcano"}), None, WaitReason.SCHEDULER, "volcano"),
        (pod(spec={"nodeName": ""}, status={"conditions": UNSCHEDULED}), None, None, ""),
        (pod(deletionTimestamp=LATER), READY, None, ""),
        (pod(deletionTimestamp=LATER, finalizers=["x/y"]), READY, None, ""),
        (pod(deletionTimestamp=EARLIER, finalizers=["x/y"]), READY, WaitReason.FINALIZER, "x/y"),
        (
            pod(deletionTimestamp=LATER, finalizers=["x/y"], status={"phase": "Failed"}),
            READY,
            WaitReason.FINALIZER,
            "x/y",
        ),
        (pod(deletionTimestamp=EARLIER, finalizers=["x/y"]), LOST, WaitReason.NODE, "n1"),
        (pod(deletionTimestamp=EARLIER, status={"conditions": MARKED}), None, WaitReason.NODE, "n1"),
        (pod(deletionTimestamp=EARLIER, status={"reason": "NodeLost"}), None, WaitReason.NODE, "n1"),
        (
            pod(deletionTimestamp=EARLIER, status={"conditions": MARKED}),
            READY,
            WaitReason.TERMINATION,
            EARLIER,
        ),
        (pod(deletionTimestamp=EARLIER, status={"phase": "Running"}), READY, WaitReason.TERMINATION, EARLIER),
    ],
)
def test_reason_and_what_is_named(lower, node, reason, named):
    """Nothing within the grace period of a deletion, and nothing of a pod that starts."""
    before = copy.deepcopy(lower)
    wait = waits.of_pod(lower, node, cluster="a", now=NOW)
    assert (None if wait is None else wait.reason) == reason
    assert wait is None or named in wait.message
    assert lower == before


@pytest.mark.parametrize(
    ("older", "named"),
    [
        (pod(), "pod shop/web of lower cluster a is being deleted and has time to end"),
        (pod(deletionTimestamp=LATER), f"has time to end until {LATER}"),
        (pod(deletionTimestamp=EARLIER, finalizers=["x/y"]), "held by finalizers: x/y"),
        (pod(deletionTimestamp=EARLIER, status={"conditions": MARKED}), "Node n1"),
    ],
)
def test_predecessor_is_named_with_what_it_waits_for(older, named):
    """And the reason is that of the waiting pod."""
    wait = waits.of_predecessor(older, None, cluster="a", now=NOW)
    assert wait.reason is WaitReason.PREDECESSOR
    assert named in wait.text


def test_label_that_may_have_caused_a_gate_is_named_with_its_setting():
    """The label came from the upper pod."""
    lower = pod(
        spec={"nodeName": "", "schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]},
        labels={"kueue.x-k8s.io/queue-name": "q"},
    )
    wait = waits.of_start(lower, None, cluster="a")
    assert wait is not None
    assert "kueue.x-k8s.io/queue-name" in wait.step
    assert "ignore.presets: [kueue]" in wait.step


def test_condition_names_the_gates():
    """Other conditions and reasons stay."""
    gated = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated", "message": "gates"}
    lower = from_dict(pod(spec={"nodeName": "", "schedulingGates": [{"name": "a/b"}]}))
    status: dict[str, Any] = {"conditions": [{"type": "Ready", "status": "False"}, gated]}
    waits.name_gates(status, lower, cluster="a")
    assert status["conditions"][0] == {"type": "Ready", "status": "False"}
    assert "a/b" in status["conditions"][1]["message"]
    assert gated["message"] == "gates"
    other = {"conditions": [dict(UNSCHEDULED[0])]}
    waits.name_gates(other, lower, cluster="a")
    assert other == {"conditions": UNSCHEDULED}


def test_messages_are_bounded():
    """Users of the lower cluster can add thousands of finalizers."""
    lower = pod(deletionTimestamp=EARLIER, finalizers=[f"x/{number}{'y' * 500}" for number in range(1000)])
    wait = waits.of_pod(lower, READY, cluster="a", now=NOW)
    assert wait is not None
    assert "and 995 more" in wait.message
    assert len(wait.text) < 2000


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ('admission webhook "vpod.kb.io" denied the request: no node selector', "ignore.presets: [jobset]"),
        (
            "ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no",
            "Admission rule p of the lower cluster",
        ),
        (
            'failed calling webhook "w.example.com": connection refused',
            "Webhook w.example.com of the lower cluster does not answer",
        ),
        ("exceeded quota: q", ""),
    ],
)
def test_refusal_by_an_extension_has_a_remedy(message, advice):
    """The extension is named."""
    lower = pod(labels={"jobset.sigs.k8s.io/jobset-name": "j"})
    found = waits.webhook_advice(message, lower)
    assert advice in found
    assert bool(found) is bool(advice)


def test_every_reason_is_a_code_of_diagnose():
    """Event and ``diagnose`` say the same."""
    assert set(map(str, WaitReason)) <= set(map(str, Code))

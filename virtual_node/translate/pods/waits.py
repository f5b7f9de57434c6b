"""What a pod waits for in its lower cluster beside its own containers: the reason, a message and the next step. No IO.

The virtual node writes events with these reasons, and ``diagnose`` has the same as codes. Waits that the creator finds
(missing objects, refusals) are in ``controllers/base/problems.py``.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from clusterset.model import operators
from clusterset.model.pod.conditions import condition, is_finished, is_true
from controller_runtime.apimachinery import timestamps
from controller_runtime.objects import Object

_MOST_NAMED = 5
"""Gates and finalizers that a message names. Anybody in the lower cluster can add more."""
_LONGEST_NAME = 128
"""Characters of each in a message."""


class WaitReason(enum.StrEnum):
    """Reason of the event about a wait, and the code of ``diagnose``."""

    PREDECESSOR = "WaitingForPredecessor"
    """An older lower pod of the same name still exists."""
    FINALIZER = "LowerFinalizer"
    NODE = "LowerNodeNotReady"
    TERMINATION = "LowerPodPresent"
    """The lower pod that is being deleted has not ended."""
    GATE = "SchedulingGated"
    DELETION = "LowerDeletionRefused"
    """The lower cluster refuses to delete the lower pod."""
    COPIES = "WaitingForCopies"
    """What the pod needs in the lower cluster cannot be read or copied yet."""
    SCHEDULER = "NoScheduler"
    """No scheduler of the lower cluster has looked at the pod."""
    BACK_OFF = "LowerPodLostBackOff"
    """Earlier pods of the same owner were deleted in the lower cluster again and again."""


GRACE: Mapping[WaitReason, float] = {
    WaitReason.SCHEDULER: 30.0,
    WaitReason.NODE: 30.0,
    WaitReason.COPIES: 30.0,
    WaitReason.DELETION: 0.0,
}
"""Seconds for which a wait lasts before it is reported."""
SHORT = 10.0
"""The same, for all other reasons. A replacement of a pod normally takes a second."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a pod waits for."""

    reason: WaitReason
    message: str
    """What it waits for, by name."""
    step: str
    """What to do."""

    @property
    def text(self) -> str:
        """Return message and step as sentences, for an event."""
        return f"{self.message}. {self.step[:1].upper()}{self.step[1:]}"

    @property
    def grace(self) -> float:
        """Return the seconds before the wait is reported."""
        return GRACE.get(self.reason, SHORT)


def of_pod(
    lower: Mapping[str, Any], node: Mapping[str, Any] | None, *, cluster: str, now: datetime
) -> Wait | None:
    """Return what a lower pod that is being deleted, or has not started, waits for; None: nothing unusual.

    Args:
        lower: the lower pod.
        node: its lower node; None: unknown, or it does not exist.
        cluster: the lower cluster's name.
        now: the current time.
    """
    if lower["metadata"].get("deletionTimestamp"):
        return of_deletion(lower, node, cluster=cluster, now=now)
    return of_start(lower, node, cluster=cluster)


def of_deletion(
    lower: Mapping[str, Any], node: Mapping[str, Any] | None, *, cluster: str, now: datetime
) -> Wait | None:
    """Return why a lower pod that is being deleted still exists; None: it is within its grace period.

    Args: as ``of_pod``.
    """
    metadata, name = lower["metadata"], str((lower.get("spec") or {}).get("nodeName") or "")
    late = (now - timestamps.parse(metadata["deletionTimestamp"])).total_seconds()
    if name and (why := _node_trouble(lower, node)):
        return Wait(
            WaitReason.NODE,
            f"Node {name} of lower cluster {cluster} {why} and does not confirm that pod {_key(lower)} has ended",
            "repair the node; if it is gone for good, delete it, or taint it node.kubernetes.io/out-of-service:NoExecute",
        )
    finalizers = _named(metadata.get("finalizers") or ())
    if finalizers and (late > 0 or is_finished(lower.get("status"))):
        return Wait(
            WaitReason.FINALIZER,
            f"Pod {_key(lower)} of lower cluster {cluster} has ended and is held by finalizers: {finalizers}",
            _advised(
                "find out which controller of the lower cluster removes them",
                metadata.get("finalizers") or (),
                lower,
            ),
        )
    if late <= 0:
        return None
    return Wait(
        WaitReason.TERMINATION,
        f"Pod {_key(lower)} of lower cluster {cluster} has not ended in its grace period, until "
        f"{metadata['deletionTimestamp']}",
        f"look at it and at its node: kubectl --kubeconfig LOWER describe pod -n {metadata['namespace']} {metadata['name']}",
    )


def of_predecessor(
    older: Mapping[str, Any], node: Mapping[str, Any] | None, *, cluster: str, now: datetime
) -> Wait:
    """Return why a pod waits for the name of an older lower pod.

    Args: as ``of_pod``, for the older pod.
    """
    deleted = older["metadata"].get("deletionTimestamp")
    why = of_deletion(older, node, cluster=cluster, now=now) if deleted else None
    if why is not None:
        message = f"The pod waits for the name of an older pod. {why.message}"
        return Wait(WaitReason.PREDECESSOR, message, f"{why.step}. The pod starts by itself then")
    until = f" until {deleted}" if deleted else ""
    return Wait(
        WaitReason.PREDECESSOR,
        f"The pod waits for the name of an older pod: pod {_key(older)} of lower cluster {cluster} is being deleted and has "
        f"time to end{until}",
        "wait; the pod starts by itself then",
    )


def of_start(lower: Mapping[str, Any], node: Mapping[str, Any] | None, *, cluster: str) -> Wait | None:
    """Return what keeps a lower pod from starting, beside what its scheduler and kubelet report; None: nothing.

    Args: as ``of_pod``.
    """
    spec, status = lower.get("spec") or {}, lower.get("status") or {}
    if status.get("phase") not in {None, "", "Pending"}:
        return None
    if gates := [str(one.get("name")) for one in spec.get("schedulingGates") or ()]:
        return Wait(
            WaitReason.GATE,
            f"Lower cluster {cluster} has added scheduling gates to the pod: {_named(gates)}",
            _advised("find out which controller of the lower cluster removes them", gates, lower),
        )
    if not spec.get("nodeName"):
        if condition(status, "PodScheduled"):
            return None
        name = spec.get("schedulerName") or "default-scheduler"
        return Wait(
            WaitReason.SCHEDULER,
            f"No scheduler named {name} of lower cluster {cluster} has looked at the pod",
            "run that scheduler, or correct annotation virtual-node.io/scheduler-name in the pod's template",
        )
    if why := _node_trouble(lower, node):
        return Wait(
            WaitReason.NODE,
            f"Node {spec['nodeName']} of lower cluster {cluster} {why} and does not start the pod",
            "repair the node, or delete the pod, so that its owner creates another one",
        )
    return None


def name_gates(status: dict[str, Any], lower: Object, *, cluster: str) -> None:
    """Name the lower pod's scheduling gates in condition PodScheduled of an upper status, in place. The scheduler does not."""
    scheduled = condition(status, "PodScheduled")
    if scheduled.get("reason") != WaitReason.GATE:
        return
    wait = of_start({**lower.to_dict(), "status": {"phase": "Pending"}}, None, cluster=cluster)
    if wait is not None and wait.reason is WaitReason.GATE:
        status["conditions"] = [
            {**one, "message": wait.text} if one is scheduled else one for one in status["conditions"]
        ]


def of_copies(why: str, *, cluster: str) -> Wait:
    """Return the wait of a pod for objects that cannot be read or copied; ``why``: the error."""
    return Wait(
        WaitReason.COPIES,
        f"The pod is not created in lower cluster {cluster} yet: {why}",
        "wait; if it lasts, look at the log of the virtual node, and check its rights with virtual-node check",
    )


def of_refused_deletion(lower: Mapping[str, Any], why: str, *, cluster: str) -> Wait:
    """Return the wait of an upper pod of which the lower pod cannot be deleted; ``why``: the lower API server's error."""
    advice = webhook_advice(why, lower)
    return Wait(
        WaitReason.DELETION,
        f"Lower cluster {cluster} refuses to delete pod {_key(lower)}: {why}",
        advice or "find out what refuses it; the deletion is tried again",
    )


def of_losses(owner: str, *, namespace: str, cluster: str, seconds: float, by: str) -> Wait:
    """Return the wait of a pod whose owner repeatedly loses its pods in the lower cluster.

    Args:
        owner: kind and name of the upper pod's controller.
        namespace: the lower namespace.
        cluster: the lower cluster's name.
        seconds: the back-off.
        by: the controller of the lower cluster that had adopted the last lost pod; empty: unknown.
    """
    what = f"{by} of that cluster, which had adopted the last pod" if by else "a program of that cluster"
    return Wait(
        WaitReason.BACK_OFF,
        f"Pods of {owner} are deleted in lower cluster {cluster} soon after they start, so the next pod is created after "
        f"{seconds:.0f} s. They may be deleted by {what}",
        f"delete {by} there, or change its selector"
        if by
        else f"find out who deletes them: kubectl --kubeconfig LOWER get events -n {namespace}, or the audit log",
    )


_WEBHOOK = re.compile(
    r"admission webhook \"([^\"]{1,253})\" denied|failed calling webhook \"([^\"]{1,253})\"|"
    r"ValidatingAdmissionPolicy '([^']{1,253})'"
)
"""API servers' messages about refusals by extensions, with the extension's name."""


def webhook_advice(message: str, lower: Mapping[str, Any]) -> str:
    """Return the cause and the remedy if an admission webhook or policy of the lower cluster refused a pod; empty: none did.

    Args:
        message: the API server's.
        lower: the pod that it refused.
    """
    found = _WEBHOOK.search(message)
    if found is None:
        return ""
    name = next(filter(None, found.groups()))
    if found[2]:
        return f"Webhook {name} of the lower cluster does not answer: repair it there; the pod is tried again"
    advice = operators.advice([name], user_keys(lower), guess=True)
    rest = f" {advice}" if advice else ""
    return f"Admission rule {name} of the lower cluster refuses it.{rest or ' Change the pod or the rule'}"


def _node_trouble(lower: Mapping[str, Any], node: Mapping[str, Any] | None) -> str:
    """Return why a lower pod's node does not work, as the end of a sentence; empty: it works, or nothing is known."""
    if node is not None:
        ready = condition(node.get("status"), "Ready")
        if ready.get("status") == "True":
            return ""
        return f"is not Ready ({ready.get('reason') or 'no condition'})"
    status = lower.get("status") or {}
    # kube-controller-manager marks the pods of a lost node (pkg/controller/util/node, MarkPodsNotReady).
    is_marked = condition(status, "Ready").get("status") == "False" and is_true(status, "ContainersReady")
    return "is not Ready" if is_marked or status.get("reason") == "NodeLost" else ""


def _advised(step: str, names: Any, lower: Mapping[str, Any]) -> str:
    advice = operators.advice(map(str, names), user_keys(lower))
    return f"{step}. {advice}" if advice else step


def user_keys(lower: Mapping[str, Any]) -> list[str]:
    """Return the keys of a pod's labels and annotations."""
    metadata = lower.get("metadata") or {}
    return [*(metadata.get("labels") or ()), *(metadata.get("annotations") or ())]


def _named(names: Any) -> str:
    """Return names for a message, sorted and bounded."""
    shown = sorted(str(name)[:_LONGEST_NAME] for name in names)
    more = len(shown) - _MOST_NAMED
    return ", ".join(shown[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def _key(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}"

"""The drain of a virtual node: its request and its status on the Node, and how each pod leaves. Does no IO.

The annotation ``virtual-node.io/drain`` on a virtual Node requests that the descheduler moves all pods off it. Tenants cannot
write Nodes. The descheduler answers with the annotation ``virtual-node.io/drain-status``. A removed annotation cancels the drain.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec

from clusterset.model import names

TEMPLATE_HASH = "pod-template-hash"
"""Label by which the ReplicaSet of a Deployment selects its pods."""
ENDS_AT = "its grace period ends at"
"""Part of ``PodState.why`` of a deleted pod that may end late."""
WAITS = " waits: "
"""Part of ``PodState.why`` between a replacement, or the owner that cannot create it, and the reason."""
_LEAVING = "-leaving"
_LONGEST = 63
"""Maximum length of a label value."""
_LABEL_VALUE = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_SHOWN = 50
"""Maximum number of pods in a status. The annotations of a Node may have 256 KiB."""
_LONGEST_REASON = 500
"""Maximum characters of a reason in a status, because it may contain text of a tenant. In JSON, up to 6 bytes each."""


class Request(msgspec.Struct, rename="camel", forbid_unknown_fields=True, frozen=True, kw_only=True):
    """The value of the annotation ``virtual-node.io/drain``."""

    pod_timeout_seconds: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    """Seconds within which the replacement of a pod must become Ready. Otherwise all pods of its owner stay."""
    delete_empty_dir_data: bool = False
    """Whether pods with emptyDir or hostPath volumes are moved. They lose this data."""
    requested_at: str = ""
    """RFC 3339 time. With a new value, the descheduler tries again to move all pods."""


class PodState(msgspec.Struct, frozen=True):
    """A pod that is still on the virtual node."""

    pod: str
    """``namespace/name``."""
    state: str
    """``moving``, ``waiting`` or ``stays``."""
    why: str = ""


class Status(msgspec.Struct, rename="camel", frozen=True, kw_only=True, omit_defaults=True):
    """The value of the annotation ``virtual-node.io/drain-status``."""

    request: str
    """Value of the annotation ``virtual-node.io/drain`` that this status answers."""
    moved: int = 0
    moving: int = 0
    """Pods whose replacement is not Ready yet."""
    waiting: int = 0
    staying: int = 0
    """Pods that cannot move."""
    stopped: str = ""
    """Why no more pods are moved; empty: the drain continues."""
    pods: tuple[PodState, ...] = ()
    """Pods that are still on the virtual node, at most 50."""

    @property
    def is_over(self) -> bool:
        """Report whether no pod is moving or will be moved."""
        return not self.moving and (bool(self.stopped) or not self.waiting)

    @property
    def is_complete(self) -> bool:
        """Report whether no pod is left that the drain must move."""
        return self.is_over and not self.waiting and not self.staying and not self.stopped


class How(enum.StrEnum):
    """How a pod leaves its virtual node."""

    REPLACED_FIRST = "replaced first"
    """Its replacement is Ready before the pod is evicted."""
    ONE_AT_A_TIME = "evicted, one at a time"
    """The pod is evicted while all other pods of its owner are Ready."""
    EVICTED = "evicted"
    RECREATED = "re-created"
    STAYS = "stays"


def requested(annotations: Mapping[str, str]) -> str | None:
    """Return the text of a Node's drain request; None: no drain is requested."""
    return annotations.get(names.ANNOTATION_DRAIN)


def parse(text: str) -> Request:
    """Return the drain request of an annotation; an empty text is a request with the defaults.

    Raises:
        ValueError: the text is invalid.
    """
    return msgspec.json.decode(text or "{}", type=Request)


def status_of(annotations: Mapping[str, str]) -> Status | None:
    """Return the status of a Node's current drain request; None: the descheduler has not answered it."""
    text = annotations.get(names.ANNOTATION_DRAIN_STATUS)
    if not text:
        return None
    try:
        status = msgspec.json.decode(text, type=Status)
    except msgspec.DecodeError:
        return None
    return status if status.request == requested(annotations) else None


def summary(pods: Mapping[str, PodState], *, request: str, moved: int, stopped: str) -> Status:
    """Return the status for the pods, by UID, that are still on the virtual node."""
    listed = sorted(pods.values(), key=lambda pod: (pod.state != "stays", pod.state != "moving", pod.pod))
    count = {state: sum(one.state == state for one in listed) for state in ("moving", "waiting", "stays")}
    return Status(
        request=request,
        moved=moved,
        moving=count["moving"],
        waiting=count["waiting"],
        staying=count["stays"],
        stopped=_short(stopped),
        pods=tuple(PodState(one.pod, one.state, _short(one.why)) for one in listed[:_SHOWN]),
    )


def _short(reason: str) -> str:
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"


def how(
    owner: Mapping[str, Any] | None, labels: Mapping[str, str], *, is_ready: bool, recreates: bool = False
) -> How:
    """Return how a pod leaves its virtual node. ``owner``: its controller; ``recreates``: result of ``recreates()``.

    A pod that is not Ready answers no requests, so it is evicted without waiting for a replacement.
    """
    if owner is None:
        return How.RECREATED
    kind = owner.get("kind")
    if not is_ready or kind not in {"ReplicaSet", "StatefulSet"}:
        return How.EVICTED
    if kind == "ReplicaSet" and labels.get(TEMPLATE_HASH) and not recreates:
        return How.REPLACED_FIRST
    return How.ONE_AT_A_TIME


def released_hash(template_hash: str) -> str:
    """Return the value of label ``pod-template-hash`` with which a ReplicaSet no longer selects (releases) a pod."""
    return template_hash[: _LONGEST - len(_LEAVING)] + _LEAVING


def is_released(labels: Mapping[str, str], annotations: Mapping[str, str]) -> bool:
    """Report whether a pod has the label and the annotation of a released pod. Users can write them, too.

    Any other value of the annotation has no effect, because no valid label can be restored from it.
    """
    value = annotations.get(names.ANNOTATION_LEAVING) or ""
    return bool(_LABEL_VALUE.fullmatch(value)) and labels.get(TEMPLATE_HASH) == released_hash(value)


def recreates(deployment: Mapping[str, Any] | None) -> bool:
    """Report whether pods must end before new ones start: strategy ``Recreate``, or a ReplicaSet without a Deployment."""
    if not deployment:
        return True
    return ((deployment.get("spec") or {}).get("strategy") or {}).get("type") == "Recreate"


def surge(deployment: Mapping[str, Any]) -> int:
    """Return the number of additional pods that a Deployment may have: its ``maxSurge``, at least 1."""
    spec = deployment.get("spec") or {}
    text = str((((spec.get("strategy") or {}).get("rollingUpdate")) or {}).get("maxSurge", "25%"))
    try:
        value = (
            math.ceil(int(text[:-1]) * int(spec.get("replicas", 1)) / 100)
            if text.endswith("%")
            else int(text)
        )
    except ValueError:
        value = 1
    return max(1, value)

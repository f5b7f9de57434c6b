"""What a process remembers about one mirrored pod, in addition to the state in the two clusters.

Losing a record is safe, because after a restart the ownership labels in the lower cluster and the
``virtual-node.io/lower-uid`` annotation in the upper cluster give the same information. The record covers the
time between a write and its watch event.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clusterset.model import names
from controller_runtime.objects import Object
from virtual_node.controllers.pods.status_rate import PodTurn
from virtual_node.translate.pods import status_fields

_LARGE = 32 << 10
"""Bytes above which a pod is not kept completely, because no limit counts it."""


@dataclass(slots=True)
class PodRecord:
    """The progress of one upper pod, keyed by its uid."""

    lower_uid: str = ""
    """Uid of the lower pod that we created or saw. Empty: none yet."""
    given_up: str = ""
    """Uid of a lower pod that was deleted because the node that it required had no room. Empty: none."""
    sent: bool = False
    """A create request was sent and not refused. Only the informer or a live read shows whether it succeeded."""
    created_at: float = 0.0
    """Loop time at which this process created the lower pod or found it by name; 0: neither."""
    observed: bool = False
    """The informer has shown the lower pod."""
    last_lower: Object | None = None
    """The lower pod as last seen. Its last status is kept after its deletion, so that it reaches the upper pod."""
    written: Object | None = None
    """The lower pod as our last change left it, until the informer shows that state.

    The cache may lack our last change, because own-write consistency waits for at most 30 s. If the user
    then reverts the upper pod, the cached lower pod would not differ from it, and the revert would be lost."""
    resized: bool = False
    """A resize was sent, but the lower pod's annotation of the requested resources does not include it yet."""
    synced: Object | None = None
    """The upper pod state that the lower pod's spec and metadata are known to match."""
    followed: int = 0
    """``metadata_digest`` of the lower pod, as the informer showed it, when its labels and annotations were last compared
    with ``synced``; 0: never."""
    restored_at: float | None = None
    """Loop time at which labels or annotations changed in the lower cluster were last restored; None: never."""
    is_gone: bool = False
    """The upper pod has finished, and a live read found no pod of ours for it in the lower cluster."""
    reached: int = 0
    """Generation at which the lower pod has what ``synced`` requests; 0: unknown, or the change was refused."""
    delete_sent: int | None = None
    """Grace period of the last delete request; None: none was sent. Avoids a second request before the
    informer shows the deletion."""
    compared: tuple[str, str] = ("", "")
    """resourceVersions (upper, lower) at which the upper status was found to be current."""
    dropped: int = 0
    """Digest of the part of the last status that the upper cluster did not store, because its version does
    not know the fields; 0: it stored all. This part is not sent again."""
    turn: PodTurn = field(default_factory=PodTurn)
    """Limits the writes of the status."""
    wanted_at: float = 0.0
    """Loop time at which the upper pod was first seen; 0: the time until its lower pod was already measured."""
    changed_at: float = 0.0
    """Loop time of the first lower change that is not in the upper cluster yet; 0: none."""
    refused: str = ""
    """The last changes of the running pod that the policy refused. Prevents repeated reports."""
    complaint: tuple[str, str] = ("", "")
    """Reason and message of the last problem written to the upper pod. Prevents repeated writes."""
    too_large: tuple[Object, int | None] | None = None
    """The upper pod, and a hash of the other objects that it was translated with (None: unknown), when the translation
    exceeded its budget. None: it did not."""
    debugging: str = ""
    """The last event about waiting debug containers. Prevents repeated events."""

    refusals: int = 0
    """Number of refusals by the lower cluster, without those by quotas."""
    retry_at: float = 0.0
    """Loop time before which a refused pod is not tried again."""

    def saw(self, lower: Object) -> None:
        """Record that the informer shows the lower pod."""
        if lower.uid != self.lower_uid:
            self.delete_sent = None
        self.lower_uid = lower.uid
        self.is_gone = False
        self.observed = True
        self.last_lower = lower
        if self.written is not None and not _is_older(lower, self.written):
            self.written = None

    def saw_deletion(self, lower: Object, *, containers: int) -> None:
        """Record the last state of a lower pod that is deleted; ``containers``: number of the upper pod's.

        Only a bounded part of a large pod is kept. The cache no longer counts its memory, and a hostile server could
        delete a pod of megabytes for each of our pods.
        """
        if lower.memory > _LARGE:
            status = status_fields.rebuilt(lower.status or {}, containers=containers)
            lower = Object(lower.metadata, lower.api_version, lower.kind).with_fields(spec={}, status=status)
            lower = lower.without_metadata("labels", "annotations", "finalizers", "raw_owner_references")
        self.saw(lower)
        self.written = None

    def wrote(self, changed: Object, before: Object) -> None:
        """Record the answer to a change of a lower pod, unless it is far larger than the cached pod, whose memory counts."""
        self.written = changed if changed.memory <= 2 * before.memory + _LARGE else None


def metadata_digest(pod: Object) -> int:
    """Return a number that identifies a pod's labels and annotations; never 0."""
    return hash((frozenset(pod.labels.items()), frozenset(pod.annotations.items()))) or 1


def has_same_mirrored_fields(old: Object, new: Object) -> bool:
    """Report whether two states of one upper pod are equal in everything that is copied to the lower pod."""
    return (
        old.has_spec_equal(new)
        and old.labels == new.labels
        and (old.annotations == new.annotations or _carried(old) == _carried(new))
    )


def _carried(pod: Object) -> dict[str, str]:
    return {key: value for key, value in pod.annotations.items() if key not in names.REPORTED_ON_PODS}


def _is_older(pod: Object, other: Object) -> bool:
    """Report whether a pod is an earlier state of another. An object's resourceVersions only increase (KEP-5504)."""
    try:
        return pod.uid == other.uid and int(pod.resource_version) < int(other.resource_version)
    except ValueError:
        return False

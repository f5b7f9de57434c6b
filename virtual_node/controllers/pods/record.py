"""What a process remembers about one mirrored pod, in addition to the state in the two clusters.

Losing a record is safe, because after a restart the ownership labels in the lower cluster and the
``virtual-node.io/lower-uid`` annotation in the upper cluster give the same information. The record covers the
time between a write and its watch event. Each part has one owner, which changes it.

``StatusRate`` limits the status writes that a lower cluster causes in the upper cluster: of each pod, and in all.
A hostile lower cluster could change the statuses of its pods hundreds of times per second, and each write is a new
revision of the pod in the upper etcd. A write that is not allowed yet is delayed and not dropped: the pod is reconciled
again, and then its latest status is written.

Both limits are token buckets in the form of a due time (generic cell rate algorithm). A pod that has to wait for the
cluster's bucket reserves its place, so that pods with many changes do not delay the others for longer than one turn.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from clusterset.model import names
from clusterset.model.pod.conditions import is_finished
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import Pacer
from virtual_node.translate.base.fields import is_name
from virtual_node.translate.pods.status import rebuilt

_LARGE = 32 << 10
"""Bytes above which a pod is not kept completely, because no limit counts it."""


@dataclass(slots=True)
class LowerState:
    """What the controller knows about the lower pod. ``decision`` reads it."""

    has_seen_upper: bool = True
    """The cache has shown the upper pod to this process."""
    uid: str = ""
    """Uid of the lower pod that we created or saw. Empty: none yet."""
    given_up: str = ""
    """Uid of a lower pod that was deleted because the node that it required had no room, or because the lower cluster had
    dropped a field without which it must not run. Empty: none."""
    observed: bool = False
    """The informer has shown the lower pod."""
    last: Object | None = None
    """The lower pod as last seen. Its last status is kept after its deletion, so that it reaches the upper pod."""
    was_deleted_running: bool = False
    """The lower pod was seen while it was being deleted and had not finished."""
    terminating_since: float = 0.0
    """Loop time at which this process first saw that the lower pod is being deleted; 0: it is not."""
    has_ended_upper: bool = False
    """The upper pod was deleted because the lower pod is being deleted and takes long."""
    is_gone: bool = False
    """The upper pod has finished, and a live read found no pod of ours for it in the lower cluster."""

    def saw(self, lower: Object) -> None:
        """Record that the informer shows the lower pod."""
        if lower.uid != self.uid:
            self.was_deleted_running, self.terminating_since, self.has_ended_upper = False, 0.0, False
        if lower.metadata.deletion_timestamp is not None and not is_finished(lower.status):
            self.was_deleted_running = True
        self.uid, self.last, self.observed, self.is_gone = lower.uid, lower, True, False

    def created(self, uid: str) -> None:
        """Record that a lower pod was created, which the informer has not shown yet."""
        self.uid, self.observed = uid, False


@dataclass(slots=True)
class Creation:
    """The attempts to create the lower pod; of the creator."""

    wanted_at: float = 0.0
    """Loop time at which the upper pod was first seen; 0: the time until its lower pod was already measured."""
    sent: bool = False
    """A create request was sent and not refused. Only the informer or a live read shows whether it succeeded."""
    is_compared: bool = False
    """The lower pod was compared with what was sent, because an API server may drop fields."""
    created_at: float = 0.0
    """Loop time at which this process created the lower pod or found it by name; 0: neither."""
    too_large: tuple[Object, int | None] | None = None
    """The upper pod, and a hash of the other objects that it was translated with (None: unknown), when the translation
    exceeded its budget. None: it did not."""
    complaint: tuple[str, str] = ("", "")
    """Reason and message of the last problem written to the upper pod. Prevents repeated writes."""
    refusals: int = 0
    """Number of refusals by the lower cluster, without those by quotas."""
    retry_at: float = 0.0
    """Loop time before which a refused pod is not tried again."""

    def waited(self, now: float) -> float:
        """Return the seconds since the upper pod was first seen, if it waits for a reason that was written to it; otherwise 0.

        A kubelet that is down counts no deadlines. A lower cluster that is down writes no reason.
        """
        return now - self.wanted_at if self.wanted_at and any(self.complaint) else 0.0


@dataclass(slots=True)
class SpecSync:
    """The state of the lower pod's spec and metadata; of the updater."""

    synced: Object | None = None
    """The upper pod state that the lower pod's spec and metadata are known to match."""
    reached: int = 0
    """Generation at which the lower pod has what ``synced`` requests; 0: unknown, or the change was refused."""
    written: Object | None = None
    """The lower pod as our last change left it, until the informer shows that state.

    The cache may lack our last change, because own-write consistency waits for at most 30 s. If the user
    then reverts the upper pod, the cached lower pod would not differ from it, and the revert would be lost."""
    resized: bool = False
    """A resize was sent, but the lower pod's annotation of the requested resources does not include it yet."""
    unresized: tuple[str, str] = ("", "")
    """Reason and message for the upper pod's condition PodResizePending, because the lower cluster refuses the resize. Empty:
    it does not."""
    followed: int = 0
    """``metadata_digest`` of the lower pod, as the informer showed it, when its labels and annotations were last compared
    with ``synced``; 0: never."""
    restored_at: float | None = None
    """Loop time at which labels or annotations changed in the lower cluster were last restored; None: never."""
    refused: str = ""
    """The last changes that were refused without a request. Prevents repeated events."""
    foreign: frozenset[str] = frozenset()
    """Debug containers of both pods that were added in the lower cluster, as the last live read showed."""
    debugging: str = ""
    """The last event about waiting debug containers. Prevents repeated events."""

    def saw(self, lower: Object) -> None:
        """Record that the informer shows the lower pod."""
        if self.written is not None and not _is_older(lower, self.written):
            self.written = None

    def wrote(self, changed: Object, before: Object) -> None:
        """Record the answer to a change of a lower pod, unless it is far larger than the cached pod, whose memory counts."""
        self.written = changed if changed.memory <= 2 * before.memory + _LARGE else None

    def matches(self, upper: Object, *, shown: Object, reached: int) -> None:
        """Record that a lower pod, as the informer shows it, has what the upper pod requests, or will not get it."""
        self.synced, self.followed, self.reached = upper, metadata_digest(shown), reached


POD_BURST, POD_QPS = 30, 1.0
"""A pod of ten containers needs about thirty writes to start, if a kubelet reports each container by itself."""
CLUSTER_BURST, CLUSTER_QPS = 50_000, 200.0
"""Writes of 4 KiB. A pod needs about four of them to start and two to finish, so the burst is 12,000 pods at once. In the
ten minutes for which etcd keeps old revisions, a hostile cluster adds at most 700 MB."""
_UNIT = 4096


@dataclass(slots=True)
class PodTurn:
    """The state of one pod."""

    due: float = 0.0
    """Loop time up to which the pod's writes are used."""
    reserved: float | None = None
    """Loop time of the place in the cluster's bucket; None: none is reserved."""
    cost: float = 0.0
    """What the reserved place costs."""


@dataclass(eq=False)
class StatusRate:
    """The bucket of one lower cluster."""

    _cluster: Pacer = field(default_factory=lambda: Pacer(CLUSTER_QPS, CLUSTER_BURST))

    def wait(self, pod: PodTurn, *, size: int, now: float) -> float:
        """Return for how many seconds a write has to wait; 0: not at all, and it counts as written.

        Args:
            pod: the pod's state, which is changed.
            size: bytes of the request. A large one costs as much as several.
            now: loop time.
        """
        if (ready := pod.due - (POD_BURST - 1) / POD_QPS) > now:
            return ready - now
        cost = max(1.0, size / _UNIT)
        if pod.reserved is None:
            pod.reserved = self._cluster.take(now, cost)
            pod.cost = cost
        elif cost > pod.cost:  # the status has changed since
            self._cluster.take(now, cost - pod.cost)
            pod.cost = cost
        if pod.reserved > now:
            return pod.reserved - now
        pod.reserved = None
        pod.due = max(pod.due, now) + 1 / POD_QPS
        return 0.0


@dataclass(slots=True)
class StatusSync:
    """The state of the upper status; of the status writer."""

    compared: tuple[str, ...] = ()
    """resourceVersions (upper, lower), devices, and cause of an outage, at which the upper status was last current."""
    dropped: int = 0
    """Digest of the part of the last status that the upper cluster did not store, because its version does
    not know the fields; 0: it stored all. This part is not sent again."""
    changed_at: float = 0.0
    """Loop time of the first lower change that is not in the upper cluster yet; 0: none."""
    turn: PodTurn = field(default_factory=PodTurn)
    """Limits the writes of the status."""

    def is_own_write(self, old: Object, new: Object) -> bool:
        """Report whether an upper pod's change is only a status that we wrote, which needs no reconciliation.

        The status of a finished pod, and labels that we added, lead to further steps.
        """
        return (
            self.compared[:1] == (new.resource_version,)
            and old.labels == new.labels
            and new.metadata.deletion_timestamp is None
            and not is_finished(new.status)
        )


@dataclass(slots=True)
class Waiting:
    """What the pod waits for in the lower cluster; of the creator while there is no lower pod, then of ``WaitReporter``."""

    reason: str = ""
    """Empty: it waits for nothing."""
    since: float = 0.0
    """Loop time at which this reason was first seen."""
    reported: str = ""
    """The text of the last event. Prevents repeated events."""

    def left(self, reason: str, grace: float, *, now: float) -> float:
        """Record that the pod waits; return the seconds until the wait is to be reported, 0: now."""
        if reason != self.reason:
            self.reason, self.since, self.reported = reason, now, ""
        return max(0.0, self.since + grace - now)

    def ends(self) -> None:
        """Record that the pod no longer waits."""
        self.reason = self.reported = ""


@dataclass(slots=True)
class PodRecord:
    """The progress of one upper pod, keyed by its uid."""

    lower: LowerState = field(default_factory=LowerState)
    creation: Creation = field(default_factory=Creation)
    spec: SpecSync = field(default_factory=SpecSync)
    status: StatusSync = field(default_factory=StatusSync)
    waiting: Waiting = field(default_factory=Waiting)
    deletion: tuple[str, int | None] = ("", None)
    """Uid of a lower pod and grace period of its last delete request; of the remover. Avoids a second request before the
    informer shows the deletion."""

    def saw(self, lower: Object) -> None:
        """Record that the informer shows the lower pod."""
        self.lower.saw(lower)
        self.spec.saw(lower)

    def saw_deletion(self, lower: Object, *, containers: int) -> None:
        """Record the last state of a lower pod that is deleted; ``containers``: number of the upper pod's.

        Only a bounded part of a large pod is kept. The cache no longer counts its memory, and a hostile server could
        delete a pod of megabytes for each of our pods.
        """
        if self.lower.uid not in {"", lower.uid} or lower.uid == self.lower.given_up:
            return
        if lower.memory > _LARGE:
            status = rebuilt(lower.status or {}, containers=containers)
            name = lower.node_name
            spec = {"nodeName": name} if is_name(name) else {}
            lower = Object(lower.metadata, lower.api_version, lower.kind).with_fields(
                spec=spec, status=status
            )
            lower = lower.without_metadata("labels", "annotations", "finalizers", "raw_owner_references")
        self.lower.saw(lower)
        self.spec.written = None


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

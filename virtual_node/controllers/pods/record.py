"""What a process remembers about one mirrored pod, beyond what the two clusters say.

Everything here can be lost: after a restart the ownership labels below and the ``virtual-node.io/lower-uid``
annotation above say the same again. The memory only closes the gap between a write and its watch event.
"""

from __future__ import annotations

from dataclasses import dataclass

from controller_runtime.objects import Object


@dataclass(slots=True)
class PodRecord:
    """One upper pod's progress, keyed by its uid."""

    lower_uid: str = ""
    """Uid of the lower pod that we created or have seen. Empty: none yet."""
    sent: bool = False
    """A creation has been sent below and not been refused: whether it arrived, only the informer or a look can tell."""
    created_at: float = 0.0
    """Loop time of the creation, while the informer has not shown the pod yet."""
    observed: bool = False
    """The informer has shown the lower pod."""
    last_lower: Object | None = None
    """The lower pod as last seen; outlives its deletion, so that its last words reach the upper pod."""
    written: Object | None = None
    """The lower pod as our last change left it, until the informer shows that.

    Own-write consistency alone does not suffice: it waits for 30 s at most. Where the watch is held up for longer, a change
    that is taken back would look like no change next to the cached pod, and the lower pod would keep it.
    """
    resized: bool = False
    """A resize has gone below, and the lower pod's own note of what was asked for does not tell of it yet."""
    synced: Object | None = None
    """The upper pod whose spec and metadata the lower pod is known to have."""
    followed: Object | None = None
    """The lower pod, as the informer showed it, whose labels and annotations were last compared with ``synced``."""
    restored_at: float | None = None
    """Loop time at which labels or annotations that others had changed below were last put back."""
    is_gone: bool = False
    """The upper pod has finished, and the lower cluster, when asked, had no pod of ours for it."""
    reached: int = 0
    """Generation of the lower pod at which it has what ``synced`` asks for; 0: not known, or it was refused."""
    delete_sent: int | None = None
    """Grace period of the deletion that was sent below; None: none was. Saves repeating it until it shows."""
    compared: tuple[str, str] = ("", "")
    """resourceVersions (upper, lower) at which the upper status was found to be true."""
    dropped: int = 0
    """Digest of the part of the last status that the upper cluster did not store, because its version does not know the
    fields; 0: it stored all. The same is not sent again."""
    wanted_at: float = 0.0
    """Loop time at which the upper pod was first seen; 0: measured, or found already mirrored."""
    changed_at: float = 0.0
    """Loop time of the first lower change that is not upstream yet; 0: none."""
    refused: str = ""
    """The last changes of the running pod that the policy refused, so that they are reported once."""
    complaint: str = ""
    """The last problem written into the upper pod, so that it is written once."""
    debugging: str = ""
    """The last event about debug containers that wait, so that it is written once."""

    refusals: int = 0
    """How often the lower cluster has refused the pod, its quotas left out."""
    retry_at: float = 0.0
    """Loop time before which a refused pod is not tried again."""

    def is_news(self, reason: str, message: str) -> bool:
        """Return whether a problem is another one than the last."""
        return self.complaint != complaint(reason, message)

    def saw(self, lower: Object) -> None:
        """Note that the informer shows the lower pod."""
        if lower.uid != self.lower_uid:
            self.delete_sent = None
        self.lower_uid = lower.uid
        self.is_gone = False
        self.observed = True
        self.last_lower = lower
        if self.written is not None and not _is_older(lower, self.written):
            self.written = None


def complaint(reason: str, message: str) -> str:
    """A problem as a record remembers it."""
    return f"{reason}: {message}"


def _is_older(pod: Object, other: Object) -> bool:
    """Whether a pod is an earlier state of another: versions of one object are numbers that grow (KEP-5504)."""
    try:
        return pod.uid == other.uid and int(pod.resource_version) < int(other.resource_version)
    except ValueError:
        return False

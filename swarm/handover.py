"""The record of a Swarm: which pod may run which job, and its transitions. No IO.

The record is stored in the Swarm's ``status.record``. One object with one resourceVersion holds all grants of a Swarm. So two
controllers cannot grant the same job twice, because the second write conflicts. Everything that workers read is derived from a
stored record.

``advance`` makes one transition: it applies acknowledgements, revokes and grants jobs. Why a job never runs in two pods under
``Exclusive``:

* A worker starts a job only by a share that was written for its session, from a record that grants the job to its pod.
* Records form a sequence, because each is written over the one before (resourceVersion).
* A grant leaves the record only when the pod is gone, when its process has ended (a later session of the same pod), or
  when the session has acknowledged, without the job, a share at least as new as the revocation. A session never uses a
  share that is older than one it has acknowledged, so it cannot start the job again. It also leaves the record when the
  session was ended after its fence time: the worker has then stopped its jobs, and cannot renew its Lease.
* A job is granted only while no other pod has it in the record.
"""

from __future__ import annotations

import base64
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from controller_runtime.apimachinery import readable

EXCLUSIVE = "Exclusive"
OVERLAP = "Overlap"
_UNLISTED = 65_536
"""Maximum characters of recorded names of jobs that no worker shall run. A hostile worker can report any names, and the
record must fit into the Swarm."""
_LIMIT = 64 << 20
"""Bytes; a controller never writes a record that decompresses to more."""


class Slot(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Stable identity of one worker, which a replacement pod takes over: a pod name, or ``slot-N`` for a Deployment."""

    name: str
    index: int
    jobs: list[str] = []
    """Jobs assigned to the slot, including those that do not run yet."""
    pod: str = ""
    uid: str = ""
    """UID of the pod in the slot; empty: no pod."""
    unready_since: float = 0.0
    """Seconds since the epoch; 0: ready."""


class Holder(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A pod that may run jobs. It stays in the record until it runs none, even without a slot."""

    pod: str
    uid: str
    node: str = ""
    session: str = ""
    """Session of the worker process that the share is written for; empty: none has registered."""
    life: int = 0
    version: int = 0
    """Version of the share's content."""
    start: list[str] = []
    stop: list[str] = []
    """Revoked jobs that the worker has not acknowledged as stopped."""
    draining: bool = False
    silent: bool = False
    """Whether its worker lost its slot because it does not report, although its pod may be ready: its session was ended
    after the fence time, or it had none for the grace period. The next session clears this."""
    fence: float = 0.0
    """Longest fence time, in seconds, that the session may apply; 0: it may run jobs without a fence."""


class Ledger(msgspec.Struct, kw_only=True, omit_defaults=True):
    """All grants of a Swarm."""

    version: int = 0
    """Version of the newest share or assignment; never decreases."""
    table: int = 0
    """Version of the last change of the assignment."""
    settings: str = ""
    """Digest of the settings that all shares contain; a change gives all shares a new version."""
    slots: dict[str, Slot] = {}
    holders: dict[str, Holder] = {}
    """By pod UID."""

    def holder_of(self, slot: Slot) -> Holder | None:
        """Return the pod in the slot; None: no pod."""
        return self.holders.get(slot.uid)

    def slots_by_uid(self) -> dict[str, Slot]:
        """Return the slot of each pod that has one, by pod UID."""
        return {slot.uid: slot for slot in self.slots.values() if slot.uid}

    def previous(self) -> dict[str, str]:
        """Return the name of each assigned job's slot."""
        return {job: slot.name for slot in self.slots.values() for job in slot.jobs}


_Number = Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]
_Text = Annotated[str, msgspec.Meta(max_length=128)]
_Jobs = Annotated[list[Annotated[str, msgspec.Meta(max_length=1024)]], msgspec.Meta(max_length=40_000)]
"""The limits protect the record from a hostile worker. 40,000 is twice the largest number of jobs of a Swarm."""
_ERRORS, _LONGEST_ERROR = 20, 200


class Acknowledgement(msgspec.Struct, kw_only=True, rename="camel", omit_defaults=True):
    """What a worker reports; see docs/use/swarm.md."""

    pod_uid: _Text = msgspec.field(default="", name="podUID")
    session: _Text = ""
    life: _Number = 0
    version: _Number = 0
    running: _Jobs | None = []
    """Jobs that run, or may start without a newer share; None: the list was too long."""
    running_count: int = 0
    """Number of running jobs if the list was too long."""
    stopped: _Jobs = []
    """Jobs with state ``stop`` in the share, except jobs that still run."""
    failing: dict[str, str] = {}
    draining: bool = False
    fence_seconds: Annotated[float, msgspec.Meta(ge=0)] | None = None
    """Fence time in seconds that the worker applies; 0: none, or not read yet; None: the worker has no fence."""
    seen: _Number = 0
    """Version of the newest share whose fence time the worker applies. It is above ``version`` with ``refresh:
    Restart``, where later shares change no other settings; 0: the same as ``version``."""
    jobs: _Jobs | None = None
    """Jobs that a worker of k8s-swarm read when it started; it reports only these and the version, over HTTP."""

    def begins_after(self, holder: Holder | None) -> bool:
        """Report whether this is a later session of the pod than the last one in the record."""
        if holder is None:
            return bool(self.session) and self.life > 0
        return self.session not in {"", holder.session} and self.life > holder.life

    def unreleased(self, jobs: Iterable[str]) -> list[str]:
        """Return those of the jobs that run, or can start without a newer share."""
        if self.running is None:
            stopped = set(self.stopped)
            return [job for job in jobs if job not in stopped]
        running = set(self.running)
        return [job for job in jobs if job in running]


def dump(ledger: Ledger) -> str:
    """Return the text for the Swarm's status; compressed, because 10,000 long names would exceed etcd's limit."""
    return base64.b64encode(zlib.compress(msgspec.json.encode(ledger), 6)).decode()


def load(text: str) -> Ledger:
    """Parse the record in a Swarm's status; return an empty one if there is none.

    Raises:
        ValueError: the text is damaged.
    """
    if not text:
        return Ledger()
    try:
        stream = zlib.decompressobj()
        data = stream.decompress(base64.b64decode(text, validate=True), _LIMIT)
        if not stream.eof:
            raise ValueError("incomplete or too large")
        return msgspec.json.decode(data, type=Ledger)
    except (ValueError, zlib.error, msgspec.MsgspecError) as error:
        raise ValueError(f"status.record cannot be read: {error}") from None


def acknowledgement(text: str) -> Acknowledgement | None:
    """Parse a worker's acknowledgement; None if it is invalid. An invalid one releases no job."""
    try:
        found = msgspec.json.decode(text, type=Acknowledgement)
    except ValueError:
        return None
    shown = sorted(found.failing.items())[:_ERRORS]
    found.failing = {_printable(job): _printable(error) for job, error in shown}
    return found


def _copied(holders: Mapping[str, Holder]) -> dict[str, Holder]:
    """Return holders that can be changed; ``copy.deepcopy`` would take half of the time of a transition."""
    return {
        uid: msgspec.structs.replace(holder, start=[*holder.start], stop=[*holder.stop])
        for uid, holder in holders.items()
    }


def _printable(text: str) -> str:
    """Return the beginning of a worker's text without control characters, which a terminal would execute."""
    return readable.printable(text[:_LONGEST_ERROR], instead=" ")


def contents(ledger: Ledger) -> dict[str, Any]:
    """Return the content of each share by pod UID; changed content gives a share a new version."""
    assigned = {slot.uid: slot.jobs for slot in ledger.slots.values() if slot.uid}
    return {
        uid: (
            holder.session,
            frozenset(holder.start),
            frozenset(holder.stop),
            frozenset(assigned.get(uid, ())).difference(holder.start, holder.stop),
        )
        for uid, holder in ledger.holders.items()
    }


def advance(
    ledger: Ledger,
    *,
    slots: dict[str, Slot],
    acknowledged: Mapping[str, Acknowledgement],
    gone: Collection[str],
    fenced: Collection[str] = (),
    present: Mapping[str, str],
    leaving: Collection[str] = (),
    handover: str = EXCLUSIVE,
    restarts: bool = False,
    fence: float = 0.0,
    settings: str = "",
) -> Ledger:
    """Return the next record; equal to the given one if nothing changes.

    Args:
        ledger: the current record; it is not modified.
        slots: the wanted slots with their pods and jobs.
        acknowledged: acknowledgements by pod UID.
        gone: UIDs of pods that provably run no job any more.
        fenced: UIDs of pods with an ended session, which provably runs no job any more.
        present: UID → name of pods that may become workers. They have a Lease and a share (the jobs to run) even
            without a job, to start jobs at once.
        leaving: UIDs of pods that are being deleted; they get no new jobs.
        handover: one of the constants of this module.
        restarts: workers read only one share in their life, so a pod gets its share only when it has a slot and its
            predecessor holds no job.
        fence: fence time in shares, in seconds; 0: none. Workers apply it only under ``Exclusive``.
        settings: digest of all settings in shares.
    """
    after = msgspec.structs.replace(ledger, slots=slots, holders=_copied(ledger.holders))
    fence = fence if handover == EXCLUSIVE else 0.0
    current = dict(present) | {slot.uid: slot.pod for slot in slots.values() if slot.uid}
    for uid, pod in current.items():
        if uid not in gone and uid not in after.holders:
            after.holders[uid] = Holder(pod=pod, uid=uid, fence=fence)
    for uid in gone:
        after.holders.pop(uid, None)
    for uid in after.holders.keys() & set(fenced):
        # ``life`` stays, so that a late report of the ended session has no effect.
        holder = after.holders[uid]
        holder.session, holder.draining, holder.silent = "", False, True
        holder.start, holder.stop = [], []
    waiting = _waiting(after, current) if restarts else set()
    assigned = {job for slot in slots.values() for job in slot.jobs}
    names = _Names(assigned.union(*(holder.start for holder in after.holders.values())))
    for holder in after.holders.values():
        names.record(holder.stop)
    for holder in after.holders.values():
        report = acknowledged.get(holder.uid)
        # The first report of a waiting pod counts only if its worker runs jobs.
        if holder.uid in waiting and not holder.session and (report is None or report.running == []):
            continue
        _absorb(holder, report, names, any_session=handover == OVERLAP)
    for holder in after.holders.values():
        _know_fence(holder, acknowledged.get(holder.uid), fence)
    wanted = {slot.uid: set(slot.jobs) for slot in after.slots.values() if slot.uid in after.holders}
    if handover == EXCLUSIVE:
        _revoke(after, wanted)
        _grant(after, leaving, others=0, needs_session=True)
    else:
        _revoke_replaced(after, wanted, acknowledged)
        _grant(after, leaving, others=1, needs_session=False)
    # A pod that is finished or being deleted, and runs no job, needs no share.
    for uid in [
        uid
        for uid, holder in after.holders.items()
        if uid not in current and not (holder.start or holder.stop)
    ]:
        del after.holders[uid]
    after.settings = settings
    _number(ledger, after)
    return after


@dataclass(slots=True)
class _Names:
    """The names of jobs that a record may contain."""

    granted: set[str]
    """Names of jobs that a worker runs or shall run."""
    room: int = _UNLISTED
    """Characters left for other names, in the records of all pods together."""

    def record(self, jobs: Iterable[str]) -> list[str]:
        """Use up room for the names of jobs; return those with room."""
        found = []
        for job in jobs:
            self.room -= 0 if job in self.granted else len(job)
            if job in self.granted or self.room >= 0:
                found.append(job)
        return found


def _waiting(ledger: Ledger, current: Mapping[str, str]) -> set[str]:
    """Return the UIDs of pods without a complete share: no slot, or a leaving pod has their name or jobs of their slot."""
    leaving = [holder for uid, holder in ledger.holders.items() if uid not in current]
    names = {holder.pod for holder in leaving}
    held = {job for holder in leaving for job in (*holder.start, *holder.stop)}
    # The replacement of a Deployment's pod has another name, so the predecessor is found by its jobs.
    complete = {
        slot.uid
        for slot in ledger.slots.values()
        if current.get(slot.uid) not in names and held.isdisjoint(slot.jobs)
    }
    return current.keys() - complete


def _absorb(holder: Holder, report: Acknowledgement | None, names: _Names, *, any_session: bool) -> None:
    """Apply a worker's report: drop stopped jobs, add ungranted jobs."""
    if report is None or report.pod_uid != holder.uid or report.life < holder.life:
        return
    if report.session != holder.session:
        if not report.begins_after(holder):
            return
        # A later session of the same pod: the earlier process has exited, and its jobs with it.
        holder.session, holder.life = report.session, report.life
        holder.draining = holder.silent = False
        if not any_session:
            # Not under Overlap, because there the new process may use a share that was written for the earlier process.
            holder.stop = []
    holder.draining = holder.draining or report.draining
    if holder.draining:
        holder.start = report.unreleased(holder.start)
    if holder.draining or report.version >= holder.version:
        holder.stop = report.unreleased(holder.stop)
    # Jobs that run without a grant, such as after a loss of the record: no other pod may start them before they stop.
    known = {*holder.start, *holder.stop}
    holder.stop += names.record(job for job in dict.fromkeys(report.running or ()) if job not in known)


def _know_fence(holder: Holder, report: Acknowledgement | None, fence: float) -> None:
    """Set the longest fence time that the session may apply, before its next share is written with ``fence``."""
    if report is not None and report.session == holder.session:
        if report.fence_seconds is None:
            holder.fence = 0.0
        elif max(report.version, report.seen) >= holder.version:
            # It has read every share that was written for it.
            holder.fence = report.fence_seconds
    holder.fence = max(holder.fence, fence) if holder.fence and fence else 0.0


def _revoke(ledger: Ledger, wanted: Mapping[str, Collection[str]]) -> None:
    for uid, holder in ledger.holders.items():
        keep = wanted.get(uid, ())
        _stop(holder, [job for job in holder.start if job not in keep])


def _revoke_replaced(
    ledger: Ledger, wanted: Mapping[str, Collection[str]], acknowledged: Mapping[str, Acknowledgement]
) -> None:
    """Revoke jobs from pods that are no longer assigned to them, as soon as another pod runs them."""
    assigned = {job for slot in ledger.slots.values() for job in slot.jobs}
    running = {uid: _running(holder, acknowledged.get(uid)) for uid, holder in ledger.holders.items()}
    runners: dict[str, list[str]] = {}
    for uid, holder in ledger.holders.items():
        for job in holder.start:
            runners.setdefault(job, []).append(uid)
    replaced: dict[str, list[str]] = {uid: [] for uid in ledger.holders}
    for job, uids in runners.items():
        # The assigned pod first, then pods that certainly run the job.
        order = sorted(uids, key=lambda uid: (job not in wanted.get(uid, ()), job not in running[uid]))
        best = order[0]
        keep = [best] if job in assigned else []
        if keep and job not in running[best]:
            # Until the assigned pod acknowledges the job's start, one other pod keeps running the job.
            keep = order[:2]
        for uid in uids:
            if uid not in keep:
                replaced[uid].append(job)
    for uid, jobs in replaced.items():
        _stop(ledger.holders[uid], jobs)


def _running(holder: Holder, report: Acknowledgement | None) -> Collection[str]:
    """Return the granted jobs that a pod certainly runs."""
    # An older report may date from before the job was revoked and granted again.
    if (
        report is None
        or report.session != holder.session
        or report.version < holder.version
        or report.draining
    ):
        return set()
    return set(holder.start if report.running is None else report.running) - report.failing.keys()


def _grant(ledger: Ledger, leaving: Collection[str], *, others: int, needs_session: bool) -> None:
    """Grant assigned jobs that at most ``others`` other pods hold."""
    holders = Counter(job for holder in ledger.holders.values() for job in {*holder.start, *holder.stop})
    for slot in ledger.slots.values():
        holder = ledger.holder_of(slot)
        if holder is None or holder.draining or slot.uid in leaving or (needs_session and not holder.session):
            continue
        started, stopping = set(holder.start), set(holder.stop)
        assigned = set(slot.jobs)
        holder.stop = [job for job in holder.stop if job not in assigned]
        for job in slot.jobs:
            if job in stopping:
                # Assigned to this pod again before it acknowledged the revocation.
                holder.start.append(job)
            elif job not in started and holders[job] <= others:
                holder.start.append(job)
                holders[job] += 1


def _stop(holder: Holder, jobs: Collection[str]) -> None:
    if jobs:
        stopping = set(jobs)
        holder.start = [job for job in holder.start if job not in stopping]
        holder.stop = [*holder.stop, *jobs]


def _number(before: Ledger, after: Ledger) -> None:
    """Give the next version to changed shares (to all if settings changed) and to a changed table."""
    was = contents(before)
    for uid, now in contents(after).items():
        if before.settings != after.settings or was.get(uid) != now:
            after.holders[uid].version = after.version = before.version + 1
    jobs = {name: slot.jobs for name, slot in after.slots.items()}
    if jobs != {name: slot.jobs for name, slot in before.slots.items()}:
        after.table = after.version = before.version + 1

"""Computes a Swarm's next record from observed state: slots, assignment, grants. No IO.

Worker pods have stable slots, so that a replacement pod takes over its predecessor's jobs.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from swarm import handover
from swarm.assignment import STICKY, Assignment, Job, assign
from swarm.handover import EXCLUSIVE, Acknowledgement, Holder, Ledger, Slot

STATEFUL_SET = "StatefulSet"
DEPLOYMENT = "Deployment"
PODS = "Pods"

_ORDINAL = re.compile(r"-(\d{1,9})$")


@dataclass(frozen=True, slots=True)
class Pod:
    """A worker's pod, reduced to the fields that are read."""

    name: str
    uid: str
    node: str = ""
    ip: str = ""
    ready: bool = False
    deleting: bool = False
    finished: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)
    registered: bool = True
    """Whether a session of its worker can be granted jobs."""
    silent: bool = False
    """Whether its worker lost its slot because it did not report, and has not registered since; see ``Holder``."""

    @property
    def usable(self) -> bool:
        """Report whether the pod is neither being deleted nor finished."""
        return not self.deleting and not self.finished

    @property
    def works(self) -> bool:
        """Report whether the pod's worker can start jobs. A ready pod alone does not prove this."""
        return self.ready and self.usable and self.registered and not self.silent


@dataclass(frozen=True, slots=True)
class Workers:
    """The workload that the worker pods belong to."""

    kind: str
    replicas: int = 0
    first: int = 0
    """First ordinal of a StatefulSet."""
    grace: float = 30.0
    """Seconds for which a worker that does not work keeps its jobs."""


def arrange(
    slots: Mapping[str, Slot], pods: Sequence[Pod], workers: Workers, *, now: float
) -> dict[str, Slot]:
    """Return the slots ordered by index; a slot that stays keeps its jobs.

    A slot is created for a pod with a working worker. It stays while the worker works and for the grace period
    after that. It is removed immediately if its worker is silent, because then its jobs run nowhere. It is also
    removed immediately if the workers are scaled down below its index, or if its pod was selected by labels and is
    deleted or finished. While no worker works, no slot is removed for another reason than the last two, because
    there is no worker to move jobs to. Then ready pods also get slots, so that the first registered worker does not
    get all jobs.
    """
    numbered = workers.kind == DEPLOYMENT
    chosen = _numbered(slots, pods, workers) if numbered else _named(pods, workers)
    any_works = any(pod.works for pod in chosen.values())
    result: dict[str, Slot] = {}
    for name, slot in slots.items():
        pod = chosen.get(name)
        if not _in_range(slot.index, workers) or (workers.kind == PODS and (pod is None or not pod.usable)):
            continue
        renewed = _renewed(slot, pod, now)
        if not (any_works and _has_expired(renewed, pod, workers, now)):
            result[name] = renewed
    for name, pod in chosen.items():
        starts = pod.ready and pod.usable and not pod.silent and not any_works
        if name not in slots and (pod.works or starts):
            index = int(name.rpartition("-")[2]) if numbered else ordinal(name)
            since = 0.0 if pod.works else now
            result[name] = Slot(name=name, index=index, pod=pod.name, uid=pod.uid, unready_since=since)
    return dict(sorted(result.items(), key=lambda item: (item[1].index, item[0])))


def next_expiry(slots: Mapping[str, Slot], workers: Workers, *, now: float) -> float | None:
    """Return the seconds until the next slot is removed because its worker does not work.

    Slots that stay after their grace period need no timer: a worker that works again causes a reconcile.
    """
    # The same expression as in ``_has_expired``, so that rounding cannot leave a slot without a timer.
    waits = [workers.grace - (now - slot.unready_since) for slot in slots.values() if slot.unready_since]
    return min((wait for wait in waits if wait > 0), default=None)


def ordinal(name: str) -> int:
    """Return the number at the end of a pod's name; names without a number sort last."""
    found = _ORDINAL.search(name)
    return int(found[1]) if found else 1 << 30


def _in_range(index: int, workers: Workers) -> bool:
    return workers.kind == PODS or workers.first <= index < workers.first + workers.replicas


def _renewed(slot: Slot, pod: Pod | None, now: float) -> Slot:
    works = pod is not None and pod.works
    return msgspec.structs.replace(
        slot,
        pod=pod.name if pod else slot.pod,
        uid=pod.uid if pod else "",
        unready_since=0.0 if works else slot.unready_since or now,
    )


def _has_expired(slot: Slot, pod: Pod | None, workers: Workers, now: float) -> bool:
    if not slot.unready_since:
        return False
    return (pod is not None and pod.silent) or now - slot.unready_since >= workers.grace


def _named(pods: Sequence[Pod], workers: Workers) -> dict[str, Pod]:
    return {pod.name: pod for pod in pods if _in_range(ordinal(pod.name), workers)}


def _numbered(slots: Mapping[str, Slot], pods: Sequence[Pod], workers: Workers) -> dict[str, Pod]:
    """Return the pod of each numbered slot. Pods without a slot get vacant slots first, then new slots."""
    by_uid = {pod.uid: pod for pod in pods if pod.usable}
    chosen = {
        name: by_uid.pop(slot.uid)
        for name, slot in slots.items()
        if slot.uid in by_uid and _in_range(slot.index, workers)
    }
    # A silent worker gets no slot, because the jobs of the slot would then wait for it.
    free = sorted(
        (pod for pod in by_uid.values() if not pod.silent),
        key=lambda pod: (not pod.works, not pod.ready, pod.name),
    )
    vacant = [name for name in slots if name not in chosen]
    # Not more names than pods, because a user can write any number of replicas.
    new = (name for index in range(workers.replicas) if (name := f"slot-{index}") not in slots)
    names = itertools.chain(sorted(vacant, key=lambda name: slots[name].index), new)
    chosen.update(zip(itertools.islice(names, len(free)), free, strict=False))
    return chosen


Matches = Callable[[Pod], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Swarm's specification, reduced to what affects the record."""

    jobs: Sequence[Job]
    affinities: Mapping[str, Matches] = field(default_factory=dict)
    """Job → function that reports whether a pod satisfies the job's affinity. Contains only jobs with an affinity."""
    workers: Workers = field(default_factory=lambda: Workers(PODS))
    max_per_worker: int = 0
    strategy: str = STICKY
    handover: str = EXCLUSIVE
    restarts: bool = False
    is_polled: bool = False
    """Whether reports are read over HTTP. Workers of k8s-swarm then run jobs without a session."""
    fence: float = 0.0
    """Fence time in seconds; 0: none."""
    settings: str = ""
    """See ``Ledger.settings``."""


@dataclass(frozen=True, slots=True)
class Observed:
    """Observed state of the workers."""

    pods: Sequence[Pod]
    acknowledged: Mapping[str, Acknowledgement]
    """By pod UID."""
    gone: Collection[str] = ()
    """UIDs of pods that provably run no job any more."""
    fenced: Collection[str] = ()
    """UIDs of pods that lost their session after the fence time."""


def advance(ledger: Ledger, wanted: Wanted, observed: Observed, *, now: float) -> tuple[Ledger, Assignment]:
    """Return the next record, and the assignment that it contains."""
    pods = [_judged(pod, ledger.holders.get(pod.uid), wanted, observed) for pod in observed.pods]
    arranged = arrange(ledger.slots, pods, wanted.workers, now=now)
    result = assign(
        _with_affinities(wanted, arranged, observed.pods),
        list(arranged),
        previous=ledger.previous(),
        strategy=wanted.strategy,
        max_per_worker=wanted.max_per_worker,
    )
    for name, jobs in result.shares(arranged).items():
        arranged[name].jobs = jobs
    after = handover.advance(
        ledger,
        slots=arranged,
        acknowledged=observed.acknowledged,
        gone=observed.gone,
        fenced=observed.fenced,
        present={pod.uid: pod.name for pod in observed.pods if pod.usable},
        leaving={pod.uid for pod in observed.pods if not pod.usable},
        handover=wanted.handover,
        restarts=wanted.restarts,
        fence=wanted.fence,
        settings=wanted.settings,
    )
    lost = {slot.uid for name, slot in ledger.slots.items() if name not in arranged}
    for pod in pods:
        if pod.uid in after.holders:
            holder = after.holders[pod.uid]
            holder.node = pod.node
            holder.silent |= pod.uid in lost and pod.ready and pod.usable and not pod.works
    return after, result


def _judged(pod: Pod, holder: Holder | None, wanted: Wanted, observed: Observed) -> Pod:
    """Return the pod with the state of its worker."""
    if wanted.is_polled:
        return pod
    report = observed.acknowledged.get(pod.uid)
    begins = report is not None and report.begins_after(holder) and not report.draining
    is_fenced = pod.uid in observed.fenced
    continues = holder is not None and bool(holder.session) and not holder.draining and not is_fenced
    silent = is_fenced or (holder is not None and holder.silent)
    return replace(pod, registered=begins or continues, silent=silent and not begins)


def _with_affinities(wanted: Wanted, arranged: Mapping[str, Slot], pods: Sequence[Pod]) -> list[Job]:
    if not wanted.affinities:
        return list(wanted.jobs)
    by_uid = {pod.uid: pod for pod in pods}
    allowed: dict[int, frozenset[str]] = {}

    def resolved(job: Job) -> Job:
        matches = wanted.affinities.get(job.name)
        if matches is None:
            return job
        if id(matches) not in allowed:
            allowed[id(matches)] = frozenset(
                name
                for name, slot in arranged.items()
                if slot.uid not in by_uid  # A slot that waits for its next pod keeps its jobs.
                or matches(by_uid[slot.uid])
            )
        return Job(job.name, job.weight, job.dedicated, allowed[id(matches)])

    return [resolved(job) for job in wanted.jobs]

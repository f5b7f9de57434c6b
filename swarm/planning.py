"""Computes a Swarm's next record from observed state: slots, assignment, grants. No IO."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from swarm import slots
from swarm.assignment.model import Assignment, Job
from swarm.assignment.strategies import STICKY, assign
from swarm.handover import transition
from swarm.handover.ledger import Acknowledgement, Holder, Ledger, Slot
from swarm.slots import Pod, Workers

Matches = Callable[[Pod], bool]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Swarm's specification, reduced to what affects the record."""

    jobs: Sequence[Job]
    affinities: Mapping[str, Matches] = field(default_factory=dict)
    """Job → function that reports whether a pod satisfies the job's affinity. Contains only jobs with an affinity."""
    workers: Workers = field(default_factory=lambda: Workers(slots.PODS))
    max_per_worker: int = 0
    strategy: str = STICKY
    handover: str = transition.EXCLUSIVE
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
    """UIDs of pods whose session was ended after the fence time."""


def advance(ledger: Ledger, wanted: Wanted, observed: Observed, *, now: float) -> tuple[Ledger, Assignment]:
    """Return the next record, and the assignment that it contains."""
    pods = [_judged(pod, ledger.holders.get(pod.uid), wanted, observed) for pod in observed.pods]
    arranged = slots.arrange(ledger.slots, pods, wanted.workers, now=now)
    result = assign(
        _with_affinities(wanted, arranged, observed.pods),
        list(arranged),
        previous=ledger.previous(),
        strategy=wanted.strategy,
        max_per_worker=wanted.max_per_worker,
    )
    for name, jobs in result.shares(arranged).items():
        arranged[name].jobs = jobs
    after = transition.advance(
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

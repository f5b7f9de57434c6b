"""Reconciles a Swarm: reads caches, computes the next record, stores it, then writes the objects derived from it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from clusterset.model.names import SWARMS
from clusterset.model.pod.conditions import condition
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import Client, find_object
from controller_runtime.client.eviction import evict
from controller_runtime.errors import ApiError, Forbidden, Invalid, NotFound, TooManyRequests
from controller_runtime.events import EventRecorder
from controller_runtime.objects import Object, ObjectMeta
from controller_runtime.store import is_stub
from controller_runtime.workqueue.controller import Result
from controller_runtime.workqueue.fairness import in_thread
from swarm import assignment, handover, planning, share, spec, status
from swarm.assignment import RENDEZVOUS, Assignment, Job
from swarm.controller.caches import SWARM_BYTES, Caches, WorkerPods
from swarm.controller.delivery import Delivery, NameTaken, NotCached
from swarm.controller.liveness import ANNOTATION_GONE, Liveness
from swarm.controller.reports import Polls, Reports, WorkerAddresses
from swarm.controller.sources import Sources
from swarm.handover import Acknowledgement, Ledger
from swarm.planning import Pod
from swarm.program import Network
from swarm.spec import FINALIZER, SwarmSpec

_PAUSE = 60.0
"""Seconds between restarts of a worker of k8s-swarm, because its mounted ConfigMap may be that old."""


@dataclass(eq=False)
class Restarts:
    """Evicts workers. If a disruption budget refuses, the next reconcile retries."""

    client: Client
    recorder: EventRecorder

    def __post_init__(self) -> None:
        self._restarted: dict[tuple[str, str], float] = {}

    async def advance(
        self,
        swarm: Object,
        parsed: SwarmSpec,
        ledger: Ledger,
        acknowledged: Mapping[str, Acknowledgement],
        pods: Sequence[Pod],
        *,
        plain: Mapping[str, Sequence[str]],
    ) -> None:
        """Evict the next wave if ``refresh`` is ``Restart``."""
        if parsed.refresh != "Restart":
            return
        by_uid = {pod.uid: pod for pod in pods}
        for uid in due(ledger, acknowledged, pods, parsed.max_unavailable, plain):
            pod, now = by_uid[uid], time.monotonic()
            slot = swarm.uid, pod.name
            if uid in plain and now - self._restarted.get(slot, -_PAUSE) < _PAUSE:
                continue
            try:
                await evict(self.client, ObjectMeta(name=pod.name, namespace=swarm.namespace, uid=pod.uid))
            except NotFound:
                continue
            except TooManyRequests:
                message = f"pod {pod.name}: a disruption budget does not allow its restart yet"
                self.recorder.event(swarm, "Normal", "RestartWaits", message)
            except ApiError as error:
                message = f"pod {pod.name} cannot be restarted: {error}"
                self.recorder.event(swarm, "Warning", "RestartFailed", message)
            else:
                self._restarted[slot] = now
                self.recorder.event(
                    swarm,
                    "Normal",
                    "Restarting",
                    f"pod {pod.name} is evicted, so that its replacement reads the new share",
                )


def due(
    ledger: Ledger,
    acknowledged: Mapping[str, Acknowledgement],
    pods: Sequence[Pod],
    max_unavailable: int,
    plain: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[str]:
    """Return the UIDs of pods to evict now, so that at most ``max_unavailable`` workers are unavailable.

    Workers that lose jobs come first, because other workers wait for these jobs. A restarting worker counts as
    unavailable until it has acknowledged its share.

    Args:
        ledger: the record.
        acknowledged: acknowledgements by pod UID.
        pods: pods of the workers.
        max_unavailable: largest number of unavailable workers.
        plain: by pod UID, the jobs that a worker without acknowledgements has read.
    """
    by_uid = {pod.uid: pod for pod in pods}
    outdated: list[tuple[bool, int, str]] = []
    unavailable = 0
    for slot in ledger.slots.values():
        pod, holder = by_uid.get(slot.uid), ledger.holder_of(slot)
        report = acknowledged.get(slot.uid)
        if report is None and pod is not None and pod.usable and slot.uid in plain:
            if set(plain[slot.uid]) != set(slot.jobs):
                outdated.append((True, slot.index, slot.uid))
            continue
        if pod is None or holder is None or report is None or slot.unready_since or not pod.usable:
            unavailable += 1
            continue
        # Version 0: the process has started, but not read its share yet.
        has_read = report.session == holder.session and report.version > 0
        unavailable += not has_read
        if has_read and report.running is not None and set(report.running) != set(holder.start):
            outdated.append((not holder.stop, slot.index, slot.uid))
    return [uid for _, _, uid in sorted(outdated)[: max(0, max_unavailable - unavailable)]]


_STATUS_EVERY = 1.0
"""Seconds between writes of a status if only informational fields changed."""
_LOOK_AGAIN = 5.0
"""Seconds until proofs of absence and restarts are checked again."""

_PROBLEM = 30.0
"""Seconds until a Swarm with a problem is reconciled again."""


@dataclass(eq=False)
class Reconciler:
    """Reconciles Swarms by key. Level-triggered: may be called at any time and any number of times."""

    client: Client
    caches: Caches
    recorder: EventRecorder
    on_change: Callable[[str], None]
    """Called with the key of a Swarm when a list of jobs or a polled report changed."""
    gone_after: float
    poll_cidrs: Sequence[Network] = ()
    """As ``WorkerAddresses.ranges``."""

    def __post_init__(self) -> None:
        client, caches = self.client, self.caches
        self.sources = Sources(client, on_change=self.on_change)
        self._addresses = WorkerAddresses(caches.nodes, self.poll_cidrs)
        self.polls = Polls(on_change=self.on_change, refusal=self._addresses.refusal)
        self.liveness = Liveness(client, caches.nodes, caches.heartbeats, self.gone_after)
        self._pods = WorkerPods(caches.pods, caches.stateful_sets, caches.deployments)
        self._delivery = Delivery(client, caches.config_maps, caches.leases)
        self._reports = Reports(self._delivery, self.polls, caches.renewals)
        self._restarts = Restarts(client, self.recorder)
        self._written: dict[str, float] = {}
        self._refused: dict[str, str] = {}
        """UIDs of Swarms that were refused because of their namespace's memory, by key."""

    async def reconcile(self, key: str) -> Result | None:
        """Reconcile a Swarm once."""
        swarm = self.caches.swarms.store.get(key)
        if swarm is None:
            self.sources.forget(key)
            self._reports.forget(key)
            self._written.pop(key, None)
            self._refused.pop(key, None)
            status.forget_metrics(key)
            return None
        if is_stub(swarm):
            whole = await self._read_stub(swarm)
            if whole is None:
                return None
            swarm = whole
        else:
            self._refused.pop(key, None)
        deleting = swarm.metadata.deletion_timestamp is not None
        if FINALIZER not in swarm.metadata.finalizers:
            if not deleting:
                await self._set_finalizers(swarm, (*swarm.metadata.finalizers, FINALIZER))
            return None
        before = swarm.status or {}
        try:
            ledger, parsed = await in_thread(_read, swarm)
            wanted, problems = await self._wanted(swarm, parsed, ledger, deleting=deleting)
        except ValueError as error:
            if deleting and await in_thread(_has_no_grants, swarm):
                await self._release(swarm)
            else:
                await self._refuse(swarm, before, str(error))
            return None
        if wanted is None:
            return Result(requeue_after=1.0)
        try:
            return await self._advance(swarm, parsed, wanted, ledger, problems)
        except ApiError as error:
            self._report_refusal(swarm, error)
            raise

    async def _read_stub(self, stub: Object) -> Object | None:
        """Read a Swarm for which its namespace has no room if it is being deleted; otherwise refuse it and return None.

        The jobs that it has assigned stay. When there is room, the cache reads the Swarm and queues it.
        """
        deleting = stub.metadata.deletion_timestamp is not None
        if self._refused.get(stub.key) == stub.uid and not deleting:
            return None
        swarm = await find_object(self.client, SWARMS, stub.name, namespace=stub.namespace)
        if swarm is None or deleting:
            return swarm
        message = (
            f"the Swarms of namespace {swarm.namespace} have more than {SWARM_BYTES >> 20} MiB together, so this one does not "
            "follow changes. Delete Swarms, or divide them over namespaces"
        )
        await self._refuse(swarm, swarm.status or {}, message, reason="TooManySwarms")
        self._refused[swarm.key] = swarm.uid
        return None

    async def _advance(
        self,
        swarm: Object,
        parsed: SwarmSpec,
        wanted: planning.Wanted,
        ledger: Ledger,
        problems: list[tuple[str, str]],
    ) -> Result | None:
        deleting = swarm.metadata.deletion_timestamp is not None
        pods = self._pods.of(swarm.namespace, parsed.workers)
        acknowledged = self._reports.of(swarm, parsed, ledger, pods)
        problems += self._not_polled(parsed, [pod for pod in pods if pod.uid not in acknowledged])
        confirmed = {text.strip() for text in swarm.annotations.get(ANNOTATION_GONE, "").split(",")}
        gone, unknown = await self.liveness.gone(
            ledger.holders.values(), pods, namespace=swarm.namespace, confirmed=confirmed
        )
        fenced = await self._reports.fenced(swarm, ledger)
        if not ledger.version:
            ledger.version = await self._delivery.known_version(swarm, parsed.config_map)
        now = time.time()
        observed = planning.Observed(pods, acknowledged, gone, fenced.uids)
        settings = _settings(swarm, parsed, wanted.jobs)
        # In a thread, because for a large Swarm this would delay the renewal of the leader Lease.
        after, assignment = await in_thread(planning.advance, ledger, wanted, observed, now=now)
        findings = status.Findings(
            acknowledged={uid: acknowledged[uid] for uid in after.holders if uid in acknowledged},
            generation=swarm.metadata.generation,
            unknown=unknown,
            problems=problems,
            plain=self._reports.plain(swarm),
        )
        stored = await self._store(swarm, ledger, after, assignment, findings)
        if deleting and not _has_grants(after):
            await self._release(swarm)
            return None
        kind, original = parsed.workers.kind, parsed.config_map
        await self._delivery.deliver(swarm, after, settings, kind=kind, original=original)
        await self._restarts.advance(
            swarm, parsed, after, acknowledged, pods, plain=self._reports.plain(swarm)
        )
        waits = [_STATUS_EVERY] if not stored else []
        if problems:
            # The change that solves the problem may not queue this Swarm, such as a shorter list of another Swarm.
            waits.append(_PROBLEM)
        if fenced.next_in is not None:
            waits.append(fenced.next_in)
        waits += _waits(parsed, wanted, after, now)
        return Result(requeue_after=min(waits)) if waits else None

    def _not_polled(self, parsed: SwarmSpec, silent: Sequence[Pod]) -> list[tuple[str, str]]:
        """Return a problem if workers without a report are not polled because of their address."""
        if not parsed.workers.http_port:
            return []
        for pod in silent:
            # A pod whose node is gone will be deleted.
            exists = self.caches.nodes.store.get(pod.node) is not None
            if pod.ip and pod.usable and exists and (why := self._addresses.refusal(pod)):
                return [("WorkersNotPolled", f"worker {pod.name}: {why}")]
        return []

    async def _wanted(
        self, swarm: Object, parsed: SwarmSpec, ledger: Ledger, *, deleting: bool
    ) -> tuple[planning.Wanted | None, list[tuple[str, str]]]:
        """Return what to assign (None until the list of jobs was read), and problems as reason and message."""
        problems: list[tuple[str, str]] = []
        entries = list(parsed.jobs)
        if parsed.jobs_from is not None and not deleting:
            found = await self.sources.jobs(swarm.key, swarm.namespace, parsed.jobs_from)
            if found is None:
                return None, []
            entries, problems = found
            if problems:
                # Assigned jobs stay, because an unreadable list is not an empty one.
                known = {job for slot in ledger.slots.values() for job in slot.jobs}
                known -= {entry.name for entry in entries}
                entries += [spec.JobSpec(job) for job in sorted(known)]
        jobs, affinities, repeated = await in_thread(spec.jobs_of, [] if deleting else entries)
        if repeated:
            message = f"duplicate jobs are ignored: {', '.join(sorted(set(repeated))[:5])}"
            problems.append(("JobsRepeated", message))
        if parsed.strategy == RENDEZVOUS:
            assignment.check_size(len(jobs), len(self._pods.of(swarm.namespace, parsed.workers)))
        workers = self._pods.workers(swarm.namespace, parsed)
        if workers is None:
            named = parsed.workers.stateful_set or parsed.workers.deployment
            problems.append(("WorkersMissing", f"{parsed.workers.kind} {named} does not exist"))
            workers = planning.Workers(parsed.workers.kind, 0, grace=parsed.unready_grace_seconds)
        wanted = planning.Wanted(
            jobs=jobs,
            affinities=affinities,
            workers=workers,
            max_per_worker=parsed.max_per_worker,
            strategy=parsed.strategy,
            handover=parsed.handover,
            restarts=parsed.refresh == "Restart",
            is_polled=bool(parsed.workers.http_port),
            fence=parsed.fence_seconds,
            settings=_settings(swarm, parsed, jobs).digest(),
        )
        return wanted, problems

    async def _store(
        self,
        swarm: Object,
        ledger: Ledger,
        after: Ledger,
        assignment: Assignment,
        findings: status.Findings,
    ) -> bool:
        """Write the status if it differs; return False if the write was postponed.

        Raises:
            Conflict: another controller, or a user, changed the Swarm since it was read.
        """
        before = swarm.status or {}
        now = timestamps.rfc3339(datetime.now(UTC))
        rendered = await in_thread(status.render, before, after, assignment, findings, now=now)
        status.set_metrics(swarm, rendered)
        if rendered == before:
            return True
        last = self._written.get(swarm.key, 0.0)
        changed = after != ledger or _verdicts(rendered) != _verdicts(before)
        if not changed and time.monotonic() - last < _STATUS_EVERY:
            return False
        body = swarm.to_dict() | {"status": rendered}
        await self.client.update(SWARMS, body, subresource="status")
        self._written[swarm.key] = time.monotonic()
        self._record_assignment(swarm, ledger, after)
        return True

    def _record_assignment(self, swarm: Object, before: Ledger, after: Ledger) -> None:
        if after.table == before.table:
            return
        was = before.previous()
        moved = sum(was.get(job, worker) != worker for job, worker in after.previous().items())
        status.count_moved(swarm, moved)
        new = len(after.previous().keys() - was.keys())
        message = (
            f"version {after.table}: {len(after.slots)} workers, {moved} jobs moved, {new} newly assigned"
        )
        self.recorder.event(swarm, "Normal", "Assigned", message)

    def _report_refusal(self, swarm: Object, error: ApiError) -> None:
        """Record an Event for an error that a retry does not solve: an object was refused, or its name is taken."""
        if isinstance(error, NameTaken):
            self.recorder.event(swarm, "Warning", "NameTaken", str(error))
        elif isinstance(error, (Invalid, Forbidden, NotCached)) or "too large" in str(error):
            self.recorder.event(swarm, "Warning", "NotWritten", str(error))

    async def _refuse(
        self, swarm: Object, before: Mapping[str, Any], message: str, *, reason: str = "InvalidSpec"
    ) -> None:
        """Report in the status why a Swarm is not reconciled; assigned jobs stay."""
        now = timestamps.rfc3339(datetime.now(UTC))
        rendered = status.refused(
            before, message, reason=reason, generation=swarm.metadata.generation, now=now
        )
        if rendered == before:
            return
        body = swarm.to_dict() | {"status": rendered}
        await self.client.update(SWARMS, body, subresource="status")
        if condition(before, "Degraded").get("message") != message:
            self.recorder.event(swarm, "Warning", reason, message)

    async def _release(self, swarm: Object) -> None:
        """Let the API server delete a Swarm."""
        await self._set_finalizers(
            swarm, tuple(name for name in swarm.metadata.finalizers if name != FINALIZER)
        )

    async def _set_finalizers(self, swarm: Object, finalizers: tuple[str, ...]) -> None:
        metadata = {"finalizers": list(finalizers), "resourceVersion": swarm.resource_version}
        await self.client.patch(SWARMS, swarm.name, {"metadata": metadata}, namespace=swarm.namespace)


def _read(swarm: Object) -> tuple[Ledger, SwarmSpec]:
    """Return the record and the specification; in a thread, because each may have a megabyte.

    If the Swarm is being deleted, only its workers matter, which have to stop the jobs.

    Raises:
        ValueError: a field is wrong; the message names it.
    """
    ledger = _record(swarm)
    try:
        return ledger, spec.parse(swarm.spec)
    except ValueError:
        if swarm.metadata.deletion_timestamp is None:
            raise
    return ledger, spec.parse({"workers": (swarm.spec or {}).get("workers")})


def _record(swarm: Object) -> Ledger:
    return handover.load((swarm.status or {}).get("record") or "")


def _has_grants(ledger: Ledger) -> bool:
    """Report whether a pod may run jobs."""
    return any(holder.start or holder.stop for holder in ledger.holders.values())


def _has_no_grants(swarm: Object) -> bool:
    """Report whether a Swarm's record is valid and no pod may run its jobs."""
    try:
        return not _has_grants(_record(swarm))
    except ValueError:
        return False


def _waits(parsed: SwarmSpec, wanted: planning.Wanted, after: Ledger, now: float) -> list[float]:
    """Return after how many seconds the record may change without an event."""
    waits = []
    expiry = planning.next_expiry(after.slots, wanted.workers, now=now)
    if expiry is not None:
        waits.append(max(0.1, min(expiry, _LOOK_AGAIN)))
    slots_of = {slot.uid for slot in after.slots.values()}
    busy = any(
        holder.stop or uid not in slots_of or not holder.session for uid, holder in after.holders.items()
    )
    if busy or parsed.workers.http_port:
        waits.append(1.0 if parsed.workers.http_port else _LOOK_AGAIN)
    if parsed.refresh == "Restart":
        waits.append(_LOOK_AGAIN)
    return waits


def _verdicts(rendered: Mapping[str, Any]) -> dict[str, str]:
    """Return the status of each condition by type. ``kubectl wait`` reads these, so a change is written immediately."""
    return {condition["type"]: condition["status"] for condition in rendered.get("conditions") or ()}


def _settings(swarm: Object, parsed: SwarmSpec, jobs: Sequence[Job]) -> share.Settings:
    return share.Settings(
        swarm=swarm.name,
        handover=parsed.handover,
        refresh=parsed.refresh,
        fence_seconds=parsed.fence_seconds,
        weights={job.name: job.weight for job in jobs if job.weight != 1},
    )

"""Reads the acknowledgements of a Swarm's workers, from their Leases or over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from swarm.controller.delivery import Delivery
from swarm.controller.owned_objects import ANNOTATION_ENDED
from swarm.controller.polls import Polls
from swarm.handover import ledger as ledgers
from swarm.handover.ledger import Acknowledgement, Holder, Ledger
from swarm.slots import Pod
from swarm.spec import SwarmSpec

_FENCE_MARGIN = 1.25
"""Largest ratio of our clock rate to the worker's that fencing tolerates."""
_RETRY = 1.0
"""Seconds until the end of a session is tried again, if its Lease changed or was deleted meanwhile."""


class Renewals:
    """Notes when each Lease was last written. A standby replica does this, too, so that its term begins with them."""

    def __init__(self, leases: Informer) -> None:
        self._leases = leases
        self._seen: dict[str, float] = {}
        """UID of the Lease → when its last change arrived, on the event loop's clock."""
        leases.on_change(self._changed, self._deleted)

    def silence(self, lease: Object) -> float:
        """Return for how many seconds a Lease was not written, although the API server could be reached."""
        if self._leases.last_error is not None:
            return 0.0
        now = asyncio.get_running_loop().time()
        # After an outage of the API server, workers need time to renew their Leases.
        return now - max(self._seen.get(lease.uid, now), self._leases.followed_since)

    def _changed(self, lease: Object) -> None:
        self._seen[lease.uid] = asyncio.get_running_loop().time()

    def _deleted(self, lease: Object) -> None:
        self._seen.pop(lease.uid, None)


@dataclass(frozen=True, slots=True)
class Fenced:
    """Workers that provably stopped their jobs, because their Lease was not renewed."""

    uids: frozenset[str] = frozenset()
    """UIDs of pods with an ended session."""
    next_in: float | None = None
    """Seconds until the next session may be over; None: no session has a fence."""


class Reports:
    """Reads acknowledgements. A worker's report affects only its own Swarm."""

    def __init__(self, delivery: Delivery, polls: Polls, renewals: Renewals) -> None:
        self._delivery = delivery
        self._polls = polls
        self._renewals = renewals
        self._plain: dict[str, dict[str, list[str]]] = {}

    def forget(self, swarm: str) -> None:
        """Stop reading the reports of a deleted Swarm."""
        self._polls.forget(swarm)
        self._plain.pop(swarm, None)

    def of(
        self, swarm: Object, parsed: SwarmSpec, ledger: Ledger, pods: Sequence[Pod]
    ) -> dict[str, Acknowledgement]:
        """Return the newest report of each pod, by UID."""
        found: dict[str, Acknowledgement] = {}
        names = {holder.uid: holder.pod for holder in ledger.holders.values()}
        names |= {pod.uid: pod.name for pod in pods}
        for name, (uid, text, _) in self._delivery.acknowledgements(swarm).items():
            # The UID is an annotation of the Lease, and a worker could write another worker's UID.
            if not text or names.get(uid) != name:
                continue
            report = ledgers.acknowledgement(text)
            if report is not None and report.pod_uid == uid:
                found[uid] = report
        if parsed.workers.http_port:
            silent = [pod for pod in pods if pod.uid not in found and pod.ip and not pod.finished]
            polled = self._polls.reports(swarm.key, silent, parsed.workers.http_port)
            # A report without the pod's UID may come from another pod that has the IP now.
            found |= {uid: report for uid, report in polled.items() if report.pod_uid == uid}
            self._plain[swarm.key] = {
                uid: report.jobs or [] for uid, report in polled.items() if not report.session
            }
        return found

    def plain(self, swarm: Object) -> Mapping[str, list[str]]:
        """Return by pod UID the jobs of workers that do not acknowledge, such as k8s-swarm's."""
        return self._plain.get(swarm.key, {})

    async def fenced(self, swarm: Object, ledger: Ledger) -> Fenced:
        """End sessions that have not renewed their Lease for 1.25 × their fence time.

        Only workers with a known fence time are affected, because others do not stop by themselves.
        """
        uids = set()
        waits = []
        for name, (uid, text, lease) in self._delivery.acknowledgements(swarm).items():
            holder = ledger.holders.get(uid)
            if holder is None or holder.pod != name or not holder.session:
                continue
            if lease.annotations.get(ANNOTATION_ENDED) == holder.session:
                # An earlier reconcile ended this session, but failed to store the record.
                uids.add(uid)
                continue
            if not holder.fence:
                continue
            left = holder.fence * _FENCE_MARGIN - self._renewals.silence(lease)
            if left > 0:
                waits.append(left)
            elif _is_reported_by(holder, text) and await self._delivery.end_session(lease, holder.session):
                uids.add(uid)
            else:
                waits.append(_RETRY)
        return Fenced(frozenset(uids), min(waits, default=None))


def _is_reported_by(holder: Holder, text: str) -> bool:
    """Report whether a Lease's text is not the report of another session, which would have to stop its own jobs."""
    report = ledgers.acknowledgement(text) if text else None
    return report is None or report.session == holder.session

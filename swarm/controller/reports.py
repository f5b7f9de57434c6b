"""Reads the acknowledgements of a Swarm's workers, from their Leases or over HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from controller_runtime.objects import Object
from swarm.controller.delivery import Delivery
from swarm.controller.owned_objects import ANNOTATION_ENDED
from swarm.controller.polls import Polls
from swarm.handover import ledger as ledgers
from swarm.handover.ledger import Acknowledgement, Ledger
from swarm.slots import Pod
from swarm.spec import SwarmSpec

_FENCE_MARGIN = 1.25
"""Largest ratio of our clock rate to the worker's that fencing tolerates."""


def _is_over(report: Acknowledgement, parsed: SwarmSpec, silent: float) -> bool:
    """Report whether a worker must have stopped all jobs after ``silent`` seconds without a renewal."""
    # The worker may already use a changed fence time that it has not acknowledged, so the longer one counts.
    longest = max(report.fence_seconds, parsed.fence_seconds)
    return report.fence_seconds > 0 and silent > longest * _FENCE_MARGIN


class Reports:
    """Reads acknowledgements. A worker's report affects only its own Swarm."""

    def __init__(
        self, delivery: Delivery, polls: Polls, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._delivery = delivery
        self._polls = polls
        self._clock = clock
        self._renewals: dict[str, tuple[str, float]] = {}
        """UID of the Lease → its resourceVersion, and when this was first seen."""
        self._ended: dict[str, str] = {}
        """Pod UID → last session that the controller ended; a cached acknowledgement of this session is ignored."""
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
            if report is not None and report.pod_uid == uid and self._ended.get(uid) != report.session:
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

    async def fenced(self, swarm: Object, parsed: SwarmSpec, ledger: Ledger) -> set[str]:
        """End sessions that have not renewed their Lease for longer than the fence time; return the UIDs of their pods.

        Only workers that acknowledged a fence time are affected, because others do not stop by themselves.
        """
        if not parsed.fence_seconds:
            return set()
        fenced = set()
        for name, (uid, text, lease) in self._delivery.acknowledgements(swarm).items():
            version, seen = self._renewals.get(lease.uid, ("", 0.0))
            if version != lease.resource_version:
                seen = self._clock()
                self._renewals[lease.uid] = lease.resource_version, seen
            holder = ledger.holders.get(uid)
            if holder is None or holder.pod != name or not holder.session:
                continue
            report = ledgers.acknowledgement(text) if text else None
            silent = self._clock() - seen
            if lease.annotations.get(ANNOTATION_ENDED) == holder.session:
                # An earlier reconcile ended this session, but failed to store the record.
                fenced.add(uid)
            elif (
                report is not None
                and report.session == holder.session
                and _is_over(report, parsed, silent)
                and await self._delivery.end_session(lease, report.session)
            ):
                self._ended[uid] = report.session
                fenced.add(uid)
        return fenced

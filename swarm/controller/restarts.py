"""``refresh: Restart``: workers read their share only at start, so workers with a new share are evicted, in waves."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from controller_runtime.client.client import Client
from controller_runtime.client.eviction import evict
from controller_runtime.errors import ApiError, NotFound, TooManyRequests
from controller_runtime.events.recorder import EventRecorder
from controller_runtime.objects import Object, ObjectMeta
from swarm.handover import Acknowledgement, Ledger
from swarm.planning import Pod
from swarm.spec import SwarmSpec

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

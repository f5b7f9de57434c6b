"""Decides how a Ready pod with a controller leaves, from its owner just read from the API server."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from clusterset.model.moving import drain, movable
from clusterset.model.moving.drain import How
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from descheduler.moving import owners
from descheduler.view import claims, pods
from descheduler.view import departure as steps
from descheduler.view.departure import Departure

_NEW = timedelta(minutes=2)
"""Age from which a replacement that is not available is assumed to wait for a volume that its owner's other pods use."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a Ready pod leaves its virtual node."""

    how: How
    wait: str = ""
    """Why the pod cannot leave now; empty: it can."""
    is_total: bool = False
    """Whether ``wait`` applies to all pods, and not only to those of its owner."""
    need: int = 0
    """For ``REPLACED_FIRST``: number of its owner's available pods now, as in ``Departure.need``."""


async def plan(
    client: Client, pod: Object, *, active: Collection[Departure], wave: int, now: datetime
) -> Plan:
    """Return how a Ready pod with a controller leaves now.

    Args:
        client: client of the upper cluster.
        pod: cached pod.
        active: the departures of all pods whose replacements are not Ready yet.
        wave: maximum number of pods in ``active``; for one namespace half of it, rounded up, so that replacements
            of one tenant that do not become Ready do not delay other tenants.
        now: wall clock.

    Raises:
        ApiError: a request failed.
    """
    reference = pods.controller_of(pod) or {}
    how = drain.how(reference, pod.labels, is_ready=True)
    if how is How.EVICTED:
        return Plan(how)
    kind, uid = reference["kind"], reference["uid"]
    found = await owners.read(client, pod.namespace, kind=kind, name=reference["name"], uid=uid)
    if found is None:
        return Plan(How.EVICTED)
    if found.owner.is_orphaning:
        return Plan(how, f"its {kind} is being deleted without its pods")
    surge = 1
    if how is How.REPLACED_FIRST:
        deployment = await owners.deployment_of(client, found.body)
        if deployment is None or await _must_end_first(client, pod, found.body, deployment):
            how = How.ONE_AT_A_TIME
        else:
            surge = drain.surge(deployment)
    moving = {one.old_uid for one in active if one.owner_key == f"{pod.namespace}/{uid}"}
    available = steps.count_available(found.pods, uid, found.owner, now=now, leaving=moving)
    if how is How.ONE_AT_A_TIME:
        missing = available < found.owner.desired
        if missing and kind == "ReplicaSet" and _are_all_old(found, uid, now):
            # All pods of a ReplicaSet share their claims, so a replacement may wait until the old pods have ended.
            missing = not await claims.has_single_writer(client, pod)
        return Plan(
            how, f"{available} of {found.owner.desired} pods of its {kind} are available" if missing else ""
        )
    if len(moving) >= surge:
        return Plan(how, f"{len(moving)} replacements of its Deployment are not Ready yet (maxSurge)")
    if len(active) >= wave:
        return Plan(how, f"{len(active)} replacements are not Ready yet (--pods-per-wave)", is_total=True)
    if (count := sum(one.namespace == pod.namespace for one in active)) >= share(wave):
        return Plan(how, f"{count} replacements of its namespace are not Ready yet (half of --pods-per-wave)")
    return Plan(how, need=available)


def share(wave: int) -> int:
    """Return the maximum number of pods of one namespace in a wave."""
    return (wave + 1) // 2


def _are_all_old(found: owners.Owned, uid: str, now: datetime) -> bool:
    """Report whether all replicas of an owner exist, and none of them is new."""
    ages = [
        now - timestamps.parse(one["metadata"]["creationTimestamp"])
        for one in found.pods.values()
        if not one["metadata"].get("deletionTimestamp")
        and (movable.controller(one["metadata"]) or {}).get("uid") == uid
    ]
    return len(ages) >= found.owner.desired and min(ages, default=_NEW) >= _NEW


async def _must_end_first(
    client: Client, pod: Object, replica_set: Mapping[str, Any], deployment: Mapping[str, Any]
) -> bool:
    """Report whether the pod must end before its replacement starts."""
    selector = ((replica_set.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return (
        selector.get(drain.TEMPLATE_HASH) != pod.labels[drain.TEMPLATE_HASH]
        or drain.recreates(deployment)
        or await owners.is_selected_by_hash(client, pod.namespace, pod.labels)
        or await claims.has_single_writer(client, pod)
    )

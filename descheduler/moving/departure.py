"""How Ready pods leave a virtual node, and the record of a pod whose replacement must be Ready first (*departure*).

The ReplicaSet of a Deployment selects its pods by label ``pod-template-hash``. The descheduler changes this label of a pod. The
ReplicaSet then releases the pod and creates a replacement, and Services still send requests to the released pod, because they
select other labels. The released pod is evicted when enough pods of the ReplicaSet are available. If the original label is
restored, the ReplicaSet adopts the pod again and deletes the pod that is not Ready.

The label and the annotation of a released pod prove nothing, because users can write them. A pod is evicted only because of a
record with a valid keyed hash. A released pod without a record gets its label back.

``decide`` does no IO. ``plan`` reads the owner, its pods and claims from the API server, so that no decision uses stale caches.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar

from clusterset.model import names
from clusterset.model.moving import drain, movable
from clusterset.model.moving.drain import How
from clusterset.model.pod.conditions import condition, is_finished, is_true, why_not_started
from controller_runtime import resources
from controller_runtime.apimachinery import matching, timestamps
from controller_runtime.client.client import Client, find
from controller_runtime.objects import Object
from descheduler.moving.record import Stored


@dataclass(frozen=True, slots=True, kw_only=True)
class Departure(Stored):
    """A pod that leaves when its replacement is Ready."""

    PURPOSE: ClassVar[str] = "descheduler departure"
    KIND: ClassVar[str] = "departure"
    DESCRIPTION: ClassVar[str] = "The descheduler evicts this pod when its replacement is Ready: "
    REMEDY: ClassVar[str] = "Its pod gets its label pod-template-hash back. Delete this object"

    strategy: str
    owner_name: str
    """Name of the ReplicaSet."""
    owner_uid: str
    template_hash: str
    """Value of the pod's label before the release."""
    need: int
    """Available pods of the owner at the release. The eviction must leave as many, or the owner's replicas if fewer."""
    deadline: str
    """RFC 3339: when the pod gets its label back if its replacement is not Ready."""
    request: str = ""
    """Drain request of the node that this departure is part of; empty: none. If the node has no request anymore, the pod stays."""

    @property
    def owner_key(self) -> str:
        """Return ``namespace/UID`` of the owner."""
        return f"{self.namespace}/{self.owner_uid}"


@dataclass(frozen=True, slots=True)
class Owner:
    """A ReplicaSet or StatefulSet."""

    desired: int
    min_ready: float
    """Seconds that a pod must be Ready before it counts as available."""
    trouble: str = ""
    """Why the owner cannot create pods, such as an exceeded quota; empty: it can."""
    is_orphaning: bool = False
    """Whether it is being deleted with ``--cascade=orphan``, so that its pods stay without an owner."""


class Step(enum.Enum):
    """Next step of a departure."""

    WAIT = enum.auto()
    EVICT = enum.auto()
    """Evict the pod: its owner does not need it any more."""
    DELETE = enum.auto()
    """Delete the pod: its owner was deleted. Garbage collection ignores the pod, which has no ownerReference."""
    RESTORE = enum.auto()
    """Restore the label, so that the ReplicaSet adopts the pod again."""
    FORGET = enum.auto()
    """Delete the record: the pod is gone, is being deleted, or is no longer released."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The next step of one departure. ``why``: the reason to ``RESTORE``; for ``WAIT``, why no replacement is Ready, if known."""

    departure: Departure
    step: Step
    why: str = ""


def decide(
    departures: Sequence[Departure],
    pods: Mapping[str, Mapping[str, Any]],
    owner: Owner | None,
    *,
    now: datetime,
    cancelled: Mapping[str, str],
    unseen: Collection[str] = (),
) -> list[Decision]:
    """Return the next step of each departure of one owner.

    Together, the evictions leave as many available pods as the owner had at the release, or wants now if fewer.

    Args:
        departures: all departures of the owner.
        pods: pods by UID, just read from the API server: those of the owner and those that it released.
        owner: the ReplicaSet; None: it was deleted.
        now: wall clock.
        cancelled: UID of a pod → why it must stay.
        unseen: UIDs of pods that may run although they are not Ready, because their lower cluster does not answer.
    """
    leaving = {departure.old_uid for departure in departures}
    available, waits = 0, ""
    if departures:
        owner_uid = departures[0].owner_uid
        available = count_available(pods, owner_uid, owner, now=now, leaving=leaving)
        waits = why_waiting(pods, owner, departures[0].owner_name, owner_uid, leaving=leaving)
    decisions = []
    for departure in sorted(departures, key=lambda departure: (departure.deadline, departure.old_uid)):
        pod, is_unseen = pods.get(departure.old_uid), departure.old_uid in unseen
        step, why = _step(
            departure,
            pod,
            owner,
            available,
            now=now,
            why_cancelled=cancelled.get(departure.old_uid, ""),
            is_unseen=is_unseen,
            waits=waits,
        )
        if step is Step.EVICT and pod is not None and is_true(pod.get("status"), "Ready"):
            available -= 1
        decisions.append(Decision(departure, step, why))
    return decisions


def _step(
    departure: Departure,
    pod: Mapping[str, Any] | None,
    owner: Owner | None,
    available: int,
    *,
    now: datetime,
    why_cancelled: str,
    is_unseen: bool,
    waits: str,
) -> tuple[Step, str]:
    if pod is None or pod["metadata"].get("deletionTimestamp") or not is_released(departure, pod):
        return Step.FORGET, ""
    status = pod.get("status")
    if owner is None:
        return Step.DELETE, ""
    if owner.is_orphaning:
        return Step.RESTORE, "its ReplicaSet is being deleted without its pods"
    is_ready = is_true(status, "Ready")
    if is_finished(status) or not (is_ready or is_unseen):
        return Step.EVICT, ""
    if why_cancelled:
        return Step.RESTORE, why_cancelled
    # While the pod is Ready, it is one of the available pods.
    if available - is_ready >= min(owner.desired, departure.need):
        return Step.EVICT, ""
    if now >= timestamps.parse(departure.deadline):
        return Step.RESTORE, f"its replacement was not Ready in time{': ' if waits else ''}{waits}"
    return Step.WAIT, waits


def count_available(
    pods: Mapping[str, Mapping[str, Any]],
    owner_uid: str,
    owner: Owner | None,
    *,
    now: datetime,
    leaving: set[str] | frozenset[str] = frozenset(),
) -> int:
    """Return the number of available pods: those of the owner, and Ready pods in ``leaving``."""
    min_ready = owner.min_ready if owner is not None else 0.0
    return sum(
        is_true(pod.get("status"), "Ready") if uid in leaving else is_available(pod, min_ready, now)
        for uid, pod in pods.items()
        if not pod["metadata"].get("deletionTimestamp")
        and (uid in leaving or (movable.controller(pod["metadata"]) or {}).get("uid") == owner_uid)
    )


def why_waiting(
    pods: Mapping[str, Mapping[str, Any]],
    owner: Owner | None,
    name: str,
    owner_uid: str,
    *,
    leaving: Collection[str] = (),
) -> str:
    """Return the pod that has not started, or the owner that creates no pod, with the reason; empty: none is known.

    Args:
        pods: pods by UID; those of other owners do not count.
        owner: the owner; None: it was deleted.
        name: of the owner.
        owner_uid: UID of the owner.
        leaving: UIDs of leaving pods, which do not count.
    """
    if owner is not None and owner.trouble:
        return f"{name}{drain.WAITS}{owner.trouble}"
    reasons = (
        (
            f"{pod['metadata'].get('namespace')}/{pod['metadata'].get('name')}",
            why_not_started(pod.get("status")),
        )
        for uid, pod in pods.items()
        if uid not in leaving
        and not pod["metadata"].get("deletionTimestamp")
        and (movable.controller(pod["metadata"]) or {}).get("uid") == owner_uid
    )
    return min((f"{key}{drain.WAITS}{why}" for key, why in reasons if why), default="")


def is_available(pod: Mapping[str, Any], min_ready: float, now: datetime) -> bool:
    """Report whether a pod has been Ready for ``min_ready`` seconds."""
    ready = condition(pod.get("status"), "Ready")
    if ready.get("status") != "True" or not min_ready:
        return ready.get("status") == "True"
    since = ready.get("lastTransitionTime") or pod["metadata"]["creationTimestamp"]
    return (now - timestamps.parse(since)).total_seconds() >= min_ready


def is_released(departure: Departure, pod: Mapping[str, Any]) -> bool:
    """Report whether the pod has another hash than before the release, and no other owner has adopted it."""
    labels = pod["metadata"].get("labels") or {}
    owner = movable.controller(pod["metadata"])
    return labels.get(drain.TEMPLATE_HASH) != departure.template_hash and (
        owner is None or owner.get("uid") == departure.owner_uid
    )


def release(departure: Departure, version: str) -> dict[str, Any]:
    """Return the merge patch that makes the ReplicaSet release the pod; it is refused if the pod has changed."""
    return _patch(
        departure.old_uid, version, drain.released_hash(departure.template_hash), departure.template_hash
    )


def restore(uid: str, version: str, template_hash: str) -> dict[str, Any]:
    """Return the merge patch that undoes ``release``."""
    return _patch(uid, version, template_hash, None)


def _patch(uid: str, version: str, label: str, annotation: str | None) -> dict[str, Any]:
    return {
        "metadata": {
            "uid": uid,
            "resourceVersion": version,
            "labels": {drain.TEMPLATE_HASH: label},
            "annotations": {names.ANNOTATION_LEAVING: annotation},
        }
    }


_RESOURCES = {"ReplicaSet": resources.REPLICA_SETS, "StatefulSet": resources.STATEFUL_SETS}


@dataclass(frozen=True, slots=True)
class Owned:
    """An owner and the pods that its selector without the template hash matches, by UID."""

    owner: Owner
    body: dict[str, Any]
    pods: dict[str, dict[str, Any]]


async def read_owner(client: Client, namespace: str, *, kind: str, name: str, uid: str) -> Owned | None:
    """Return a ReplicaSet or StatefulSet with its pods; None: it was deleted or is being deleted with its pods.

    An object with another UID is not the owner, because users can write any ownerReference.

    Raises:
        ApiError: a request failed.
    """
    body = await find(client, _RESOURCES[kind], name, namespace=namespace)
    if body is None or body["metadata"]["uid"] != uid:
        return None
    is_deleted = bool(body["metadata"].get("deletionTimestamp"))
    if is_deleted and "orphan" not in (body["metadata"].get("finalizers") or ()):
        return None
    spec, status = body.get("spec") or {}, body.get("status") or {}
    wanted = (spec.get("selector") or {}).get("matchLabels") or {}
    selector = ",".join(f"{key}={value}" for key, value in wanted.items() if key != drain.TEMPLATE_HASH)
    listed = await client.list(resources.PODS, namespace=namespace, label_selector=selector or None)
    failures = (
        condition for condition in status.get("conditions") or () if condition.get("type") == "ReplicaFailure"
    )
    trouble = next(
        (failure.get("message") or "" for failure in failures if failure.get("status") == "True"), ""
    )
    owner = Owner(int(spec.get("replicas", 1)), float(spec.get("minReadySeconds") or 0), trouble, is_deleted)
    return Owned(owner, body, {pod.uid: pod.to_dict() for pod in listed.items})


async def read_released(client: Client, departures: Iterable[Departure]) -> dict[str, dict[str, Any]]:
    """Return the released pods of a deleted owner, by UID.

    Raises:
        ApiError: a request failed.
    """
    found = [
        await find(client, resources.PODS, departure.pod_name, namespace=departure.namespace)
        for departure in departures
    ]
    return {pod["metadata"]["uid"]: pod for pod in found if pod is not None}


async def deployment_of(client: Client, replica_set: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the Deployment of a ReplicaSet; None: it has none, or the Deployment was deleted.

    Raises:
        ApiError: the request failed.
    """
    metadata = replica_set["metadata"]
    owner = movable.controller(metadata)
    if owner is None or owner.get("kind") != "Deployment":
        return None
    deployment = await find(client, resources.DEPLOYMENTS, owner["name"], namespace=metadata["namespace"])
    return deployment if deployment is not None and deployment["metadata"]["uid"] == owner["uid"] else None


async def is_selected_by_hash(client: Client, namespace: str, labels: Mapping[str, str]) -> bool:
    """Report whether a Service selects the pod by its template hash; such a Service would lose a released pod.

    Raises:
        ApiError: the request failed.
    """
    listed = await client.list(resources.SERVICES, namespace=namespace)
    selectors = ((service.spec or {}).get("selector") or {} for service in listed.items)
    return any(
        drain.TEMPLATE_HASH in selector and matching.compile_selector({"matchLabels": selector})(labels)
        for selector in selectors
    )


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
    reference = pod.controller or {}
    how = drain.how(reference, pod.labels, is_ready=True)
    if how is How.EVICTED:
        return Plan(how)
    kind, uid = reference["kind"], reference["uid"]
    owned = await read_owner(client, pod.namespace, kind=kind, name=reference["name"], uid=uid)
    if owned is None:
        return Plan(How.EVICTED)
    if owned.owner.is_orphaning:
        return Plan(how, f"its {kind} is being deleted without its pods")
    surge = 1
    if how is How.REPLACED_FIRST:
        deployment = await deployment_of(client, owned.body)
        if deployment is None or await _must_end_first(client, pod, owned.body, deployment):
            how = How.ONE_AT_A_TIME
        else:
            surge = drain.surge(deployment)
    moving = {departure.old_uid for departure in active if departure.owner_key == f"{pod.namespace}/{uid}"}
    available = count_available(owned.pods, uid, owned.owner, now=now, leaving=moving)
    if how is How.ONE_AT_A_TIME:
        missing = available < owned.owner.desired
        if missing and kind == "ReplicaSet" and _are_all_old(owned, uid, now):
            # All pods of a ReplicaSet share their claims, so a replacement may wait until the old pods have ended.
            missing = not await has_single_writer(client, pod)
        if not missing:
            return Plan(how)
        waits = why_waiting(owned.pods, owned.owner, reference["name"], uid)
        text = f"{available} of {owned.owner.desired} pods of its {kind} are available"
        return Plan(how, f"{text}; {waits}" if waits else text)
    if len(moving) >= surge:
        return Plan(how, f"{len(moving)} replacements of its Deployment are not Ready yet (maxSurge)")
    if len(active) >= wave:
        return Plan(how, f"{len(active)} replacements are not Ready yet (--pods-per-wave)", is_total=True)
    if (count := sum(departure.namespace == pod.namespace for departure in active)) >= share(wave):
        return Plan(how, f"{count} replacements of its namespace are not Ready yet (half of --pods-per-wave)")
    return Plan(how, need=available)


def share(wave: int) -> int:
    """Return the maximum number of pods of one namespace in a wave."""
    return (wave + 1) // 2


def _are_all_old(owned: Owned, uid: str, now: datetime) -> bool:
    """Report whether all replicas of an owner exist, and none of them is new."""
    ages = [
        now - timestamps.parse(pod["metadata"]["creationTimestamp"])
        for pod in owned.pods.values()
        if not pod["metadata"].get("deletionTimestamp")
        and (movable.controller(pod["metadata"]) or {}).get("uid") == uid
    ]
    return len(ages) >= owned.owner.desired and min(ages, default=_NEW) >= _NEW


async def _must_end_first(
    client: Client, pod: Object, replica_set: Mapping[str, Any], deployment: Mapping[str, Any]
) -> bool:
    """Report whether the pod must end before its replacement starts."""
    selector = ((replica_set.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    return (
        selector.get(drain.TEMPLATE_HASH) != pod.labels[drain.TEMPLATE_HASH]
        or drain.recreates(deployment)
        or await is_selected_by_hash(client, pod.namespace, pod.labels)
        or await has_single_writer(client, pod)
    )


async def reachable(
    client: Client, pod: Object, *, node: str, elsewhere: Collection[Object]
) -> tuple[list[Object], str]:
    """Return the nodes on which the pod can use all its bound claims; without such a node, also why.

    ``movable.why_pinned`` has the rules.

    Args:
        client: client of the upper cluster.
        pod: cached pod.
        node: virtual node of the pod.
        elsewhere: other virtual nodes that admit the pod.

    Raises:
        ApiError: a request failed.
    """
    left = list(elsewhere)
    for name in movable.claims(pod.spec or {}):
        claim = await find(client, resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=pod.namespace)
        bound_to = movable.volume_of(claim)
        volume = await find(client, resources.PERSISTENT_VOLUMES, bound_to) if bound_to else None
        why = {
            other.name: movable.why_pinned(claim, volume, node=node, elsewhere=[_body(other)])
            for other in left
        }
        if all(why.values()):
            return [], next(iter(why.values()), "")
        left = [other for other in left if not why[other.name]]
    return left, ""


def _body(node: Object) -> dict[str, Any]:
    return {"metadata": {"name": node.name, "labels": node.labels}}


async def has_single_writer(client: Client, pod: Object) -> bool:
    """Report whether a claim of the pod allows no second pod on another lower node.

    Raises:
        ApiError: a request failed.
    """
    for name in movable.claims(pod.spec or {}):
        if movable.is_single_writer(
            await find(client, resources.PERSISTENT_VOLUME_CLAIMS, name, namespace=pod.namespace)
        ):
            return True
    return False

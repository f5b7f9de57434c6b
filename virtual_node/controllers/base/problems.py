"""Reasons why a pod cannot start yet, in the kubelet's wording if the kubelet has one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.admission import NamespaceRefusal
from controller_runtime.apimachinery import readable
from controller_runtime.errors import ApiError
from virtual_node.translate.kinds import Demand, Kind
from virtual_node.translate.pods.dependencies import Dependency

CLAIM_CONFLICT = "ClaimConflict"
NAMESPACE_NOT_ADOPTED = "NamespaceNotAdopted"
NAMESPACE_CONFLICT = "NamespaceConflict"
LOWER_CLUSTER_FULL = "LowerClusterFull"
NAMESPACE_TOO_LARGE = "NamespaceTooLarge"
SERVICE_CONFLICT = "ServiceConflict"
NAMESPACE_PROBLEMS = (NAMESPACE_NOT_ADOPTED, NAMESPACE_CONFLICT)
TOO_LARGE = "TooLarge"
_FULL_AGAIN = 60.0
"""Seconds until the next attempt in a lower cluster that has no room, because deletions there cause no event here."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a pod cannot start yet, in the kubelet's wording if the kubelet has one."""

    event_reason: str
    message: str
    waiting_reason: str
    waiting_message: str
    about: tuple[str, str] = ("", "")
    """Kind and name of the referenced object that the problem concerns; empty: it concerns the whole pod."""
    again: float = 0.0
    """Seconds until the next attempt; 0: the caller decides."""


def missing(need: Dependency) -> Problem:
    """Return the problem of a pod that references a missing object, in the kubelet's wording."""
    what = f'{need.kind.lower()} "{need.name}" not found'
    if need.volume:
        return not_mounted(need.volume, what)
    return Problem("Failed", f"Error: {what}", "CreateContainerConfigError", what)


def unreadable(what: str, error: ApiError, *, where: str = "the upper cluster") -> Problem:
    """Return the problem of an object that we may not read (``Secret shop/token``)."""
    text = f"{what} cannot be read in {where}: {error.message}"
    return Problem("Failed", f"Error: {text}", "CreateContainerConfigError", text)


def claims_of_group(group: str, claims: Sequence[str]) -> Problem:
    """Return the problem of a pod with ResourceClaims that are generated once for its PodGroup (namespace/name)."""
    text = (
        f"PodGroup {group} has one ResourceClaim for all its pods from each of these templates: {', '.join(claims)}. A lower "
        "cluster would make one for each pod. Create a ResourceClaim and name it in resourceClaimName, or remove the claims "
        "from the PodGroup"
    )
    return Problem("ResourceClaimRefused", text, "ResourceClaimRefused", text)


def too_many(what: str, limit: str, setting: str) -> Problem:
    """Return the problem of a pod that exceeds a limit of the configuration."""
    text = f"{what}; the virtual node follows {limit} ({setting} in the virtual node's configuration)"
    return Problem("TooManyReferences", text, "TooManyReferences", text)


def namespace_too_large(namespace: str, what: str, limit: int) -> Problem:
    """Return the problem of an upper namespace with objects that exceed its memory limit (bytes)."""
    text = (
        f"Namespace {namespace} has more objects than are kept for one namespace: {what}. Delete Services, EndpointSlices, "
        f"claims, followed objects or pods, or raise limits.cacheBytesPerNamespace ({limit // 1024**2} MiB) in the virtual "
        "node's configuration"
    )
    return Problem(NAMESPACE_TOO_LARGE, text, NAMESPACE_TOO_LARGE, text)


def lower_cluster_full(cluster: str) -> Problem:
    """Return the problem of an object of a namespace that uses more than its share of a lower cluster's caches."""
    text = (
        f"Lower cluster {cluster} has nearly as many objects as are kept for it, and this namespace has more than its share. "
        "Delete pods, ConfigMaps, Secrets or Services of the namespace, or raise cacheBytes of this cluster"
    )
    return Problem(LOWER_CLUSTER_FULL, text, LOWER_CLUSTER_FULL, text, again=_FULL_AGAIN)


def too_large(why: str) -> Problem:
    """Return the problem of a debug container that does not fit into one update together with others."""
    text = f"It follows in another update: {why}"
    return Problem(TOO_LARGE, text, TOO_LARGE, text)


def not_mirrored(reason: str, message: str) -> Problem:
    """Return the problem of an object that cannot be copied."""
    return Problem(reason, message, reason, message)


def not_mounted(volume: str, why: str) -> Problem:
    """Return the problem of a projected volume that cannot be filled, in the kubelet's wording."""
    text = f'MountVolume.SetUp failed for volume "{volume}" : {why}'
    return Problem("FailedMount", text, "ContainerCreating", "")


def no_token(volume: str, error: ApiError) -> Problem:
    """Return the problem of a token volume for which the upper cluster issues no token, in the kubelet's wording."""
    return not_mounted(volume, f"failed to fetch token: {error.message}")


def name_taken(kind: Kind, key: str, cluster: str) -> Problem:
    """Return the problem that an object we did not make has the lower name of a copy (``shop/web``)."""
    if kind.demand is Demand.REFERENCES:
        reason = "DependencyConflict"
        text = (
            f"Lower cluster {cluster} has a {kind.kind} {key} that is not ours; it is left alone, and the pod must not "
            "read it. Rename one of the two, remove the reference from the pod, or set namespaces.prefix for this lower "
            "cluster"
        )
    else:
        reason = f"{kind.kind}Conflict"
        text = (
            f"{kind.kind} {key} of lower cluster {cluster} is not ours; it is left alone. {kind.taken_advice}"
        )
    return Problem(reason, text, reason, text)


def claim_problem(reason: str, message: str) -> Problem:
    """Return the problem of a claim that is missing, or whose lower name is taken by an object we did not make."""
    if reason == CLAIM_CONFLICT:
        return Problem(reason, message, reason, message)
    return Problem(reason, message, "ContainerCreating", "")


def claim_conflict(cluster: str, key: str, what: str) -> str:
    """Return the message that the lower name of a claim (``shop/data``) is taken by ``what``."""
    return (
        f"Lower cluster {cluster} has {what} named {key}; it is left alone, because it may hold data. "
        "Delete or rename one of the two"
    )


def namespace_refused(refusal: NamespaceRefusal) -> Problem:
    """Return the problem of a lower namespace that must not be used for an upper namespace."""
    reason = NAMESPACE_CONFLICT if refusal.is_taken else NAMESPACE_NOT_ADOPTED
    return Problem(reason, refusal.reason, reason, refusal.reason)


def token_secret_taken(cluster: str, where: tuple[str, str]) -> Problem:
    """Return the problem of an unmanaged Secret that has the namespace and name of a Secret for tokens."""
    text = (
        f"Lower cluster {cluster} has a Secret {'/'.join(where)} that is not ours, where this pod's "
        "tokens or certificates belong; it is left alone. Delete or rename it"
    )
    return Problem("DependencyConflict", text, "DependencyConflict", text)


def contested(kind: str, key: str, cluster: str, *, again: float) -> Problem:
    """Return the problem that another program changes a copy (``shop/web``) whenever we have repaired it."""
    text = (
        f"Another program keeps changing the {kind} {key} in lower cluster {cluster}, which is a copy. It is repaired "
        "with growing pauses. virtual-node processes of one lower cluster need the same ignoreLabels, ingressClasses, "
        "gatewayClasses and namespaces"
    )
    return Problem("CopyContested", text, "CopyContested", text, again=again)


def not_stored(kind: str, key: str, cluster: str, left: Mapping[str, Any]) -> tuple[str, str]:
    """Return reason and text of the event about fields of a copy (``shop/web``) that its lower cluster does not store.

    Args:
        kind: kind of the copy.
        key: key of the copy.
        cluster: name of the lower cluster.
        left: merge patch with the fields.
    """
    fields = sorted(
        f"{part}.{name}" if isinstance(value, Mapping) else part
        for part, value in left.items()
        for name in (value if isinstance(value, Mapping) else ("",))
    )
    text = (
        f"Lower cluster {cluster} does not store {readable.some(fields)} of {kind} {key} as requested. Its version may not "
        "know a field or value, or a webhook there changes it"
    )
    return "CopyIncomplete", text


def policy_missing(name: str, why: str) -> Problem:
    """Return the problem of a new pod whose namespace has a NetworkPolicy without a current copy.

    Args:
        name: the policy; empty: no policy can be read.
        why: the cause; empty: there is no error, and the problem has no message.
    """
    reason = "NetworkPolicyNotMirrored"
    text = f"NetworkPolicy{f' {name}' if name else ''} is not mirrored: {why}" if why else ""
    return Problem(reason, text, reason, text)

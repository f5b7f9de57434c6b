"""Why a pod cannot start yet, in the kubelet's own words where it has some."""

from __future__ import annotations

from dataclasses import dataclass

from controller_runtime.errors import ApiError
from virtual_node.translate.pods.dependencies import Dependency

CLAIM_CONFLICT = "ClaimConflict"
NAMESPACE_NOT_ADOPTED = "NamespaceNotAdopted"
NAMESPACE_CONFLICT = "NamespaceConflict"
NAMESPACE_PROBLEMS = (NAMESPACE_NOT_ADOPTED, NAMESPACE_CONFLICT)
SERVICE_CONFLICT = "ServiceConflict"


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a pod cannot start yet, in the kubelet's own words."""

    event_reason: str
    message: str
    waiting_reason: str
    waiting_message: str
    about: tuple[str, str] = ("", "")
    """Kind and name of the object that the pod references; empty: it is about the pod."""


def missing(need: Dependency) -> Problem:
    """What a pod names is not there, as the kubelet words it."""
    what = f'{need.kind.lower()} "{need.name}" not found'
    if need.volume:
        text = f'MountVolume.SetUp failed for volume "{need.volume}" : {what}'
        return Problem("FailedMount", text, "ContainerCreating", "")
    return Problem("Failed", f"Error: {what}", "CreateContainerConfigError", what)


def unreadable(what: str, error: ApiError) -> Problem:
    """The upper cluster does not let us read what a pod names (``Secret shop/token``)."""
    text = f"{what} cannot be read in the upper cluster: {error.message}"
    return Problem("Failed", f"Error: {text}", "CreateContainerConfigError", text)


def too_many(what: str, limit: str, setting: str) -> Problem:
    """A pod exceeds a limit of the configuration."""
    text = f"{what}; the virtual node follows {limit} ({setting} in the virtual node's configuration)"
    return Problem("TooManyReferences", text, "TooManyReferences", text)


def no_token(volume: str, error: ApiError) -> Problem:
    """The upper cluster gives no token for a volume of the pod, as the kubelet words it."""
    text = f'MountVolume.SetUp failed for volume "{volume}" : failed to fetch token: {error.message}'
    return Problem("FailedMount", text, "ContainerCreating", "")


def name_taken(what: str, cluster: str) -> Problem:
    """An object that we did not make (``Secret shop/token``) has the lower name that a pod references."""
    text = (
        f"Lower cluster {cluster} has a {what} that is not ours; it is left alone, and the pod must not read it. "
        "Rename one of the two, remove the reference from the pod, or set namespaces.prefix for this lower cluster"
    )
    return Problem("DependencyConflict", text, "DependencyConflict", text)


def service_taken(key: str, cluster: str) -> Problem:
    """A Service that we did not make has the lower name (``shop/web``) of a copy."""
    text = (
        f"Lower cluster {cluster} has a Service {key} that is not ours; it is left alone, and pods there use it instead "
        "of this one"
    )
    return Problem(SERVICE_CONFLICT, text, SERVICE_CONFLICT, text)


def claim_problem(reason: str, message: str) -> Problem:
    """A claim of the pod is missing, or its lower name is not ours."""
    if reason == CLAIM_CONFLICT:
        return Problem(reason, message, reason, message)
    return Problem(reason, message, "ContainerCreating", "")


def claim_conflict(cluster: str, key: str, what: str) -> str:
    """Say that the lower name of a claim (``shop/data``) is taken."""
    return (
        f"Lower cluster {cluster} has {what} named {key}; it is left alone, because it may hold data. "
        "Delete or rename one of the two"
    )


def namespace_not_adopted(namespace: str, cluster: str) -> Problem:
    """A lower namespace exists, we did not create it, and the configuration does not allow its use."""
    text = (
        f"Namespace {namespace} exists in lower cluster {cluster} and was not created by virtual-node. To use it, add it "
        "to clusters[].namespaces.adopt of this lower cluster (--adopt-namespaces without a configuration file); to keep "
        "apart from it, set clusters[].namespaces.prefix"
    )
    return Problem(NAMESPACE_NOT_ADOPTED, text, NAMESPACE_NOT_ADOPTED, text)


def namespace_taken(namespace: str, cluster: str, *, made_for: str) -> Problem:
    """A lower namespace stands for another upper one, or for one of another upper cluster."""
    text = (
        f"Namespace {namespace} in lower cluster {cluster} stands for {made_for}; upper namespaces never share a lower "
        "one. Set another clusters[].namespaces.prefix or namespaces.map for this lower cluster"
    )
    return Problem(NAMESPACE_CONFLICT, text, NAMESPACE_CONFLICT, text)

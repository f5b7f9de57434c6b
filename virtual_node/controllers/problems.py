"""Why a pod cannot start yet, in the kubelet's own words where it has some."""

from __future__ import annotations

from dataclasses import dataclass

from controller_runtime.errors import ApiError
from virtual_node.translate.dependencies import Dependency


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a pod cannot start yet, in the kubelet's own words."""

    event_reason: str
    message: str
    waiting_reason: str
    waiting_message: str


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


def name_taken(what: str, cluster: str) -> Problem:
    """Somebody else's object (``Secret shop/token``) has the name that a copy would need."""
    text = (
        f"Lower cluster {cluster} has a {what} that is not ours; it is left alone. "
        "Rename one of the two, or label the lower one's namespace apart"
    )
    return Problem("DependencyConflict", text, "DependencyConflict", text)

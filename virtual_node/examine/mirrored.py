"""One pass over all mirrored pods for the rules that compare an upper pod with its lower pod.

Decoding and translating pods takes most of the time of ``inspect``, so these rules share this work.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from clusterset.model import names
from controller_runtime.apimachinery.translation_budget import TooLargeError
from virtual_node.examine.clusters import SETTINGS, is_ours_in, virtual_nodes
from virtual_node.examine.finding import Finding, Findings
from virtual_node.examine.objects import Json, labels_of
from virtual_node.examine.snapshot import Snapshot, View
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import lower_pod, update


@dataclass
class MirroredPod:
    """An upper pod on one of our virtual nodes, with its lower cluster and its lower pod."""

    upper: Json
    lower: View
    below: Json | None
    """The lower pod; None: it does not exist."""

    @property
    def options(self) -> PodOptions:
        """Return the options of the pod's virtual node."""
        return self.lower[SETTINGS].nodes[self.upper["spec"]["nodeName"]].options

    @functools.cached_property
    def likeness(self) -> bytes | None:
        """Return the key of ``update.likeness``; None: this pod must be compared by itself."""
        return None if self.below is None else update.likeness(self.below, self.upper, self.options)

    @functools.cached_property
    def requested(self) -> dict[str, Any]:
        """Return the lower pod that the user requests now, without overrides."""
        return lower_pod.lower_pod(self.upper, self.options)

    @functools.cached_property
    def desired(self) -> dict[str, Any]:
        """Return the lower pod that the virtual node would create now."""
        return lower_pod.overridden(self.requested, self.upper, self.options)


class MirroredRule(abc.ABC):
    """A rule of level MIRRORED: it gets each mirrored pod once, and may then report what several pods have in common."""

    name: ClassVar[str]

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.faultless: set[bytes | None] = set()
        """Likeness of pods without findings. A rule that translates pods skips pods like these, because the pods of one
        workload differ little."""

    @abc.abstractmethod
    def of_pod(self, pod: MirroredPod) -> Findings:
        """Yield findings about a pod; their place is the pod's lower cluster."""

    def of_all(self) -> Findings:
        """Yield findings about all pods that were given; their place is a lower cluster."""
        yield from ()


@dataclass(slots=True)
class Outcome:
    """What a rule found."""

    findings: list[Finding] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)
    """First error by lower cluster; that of the empty name concerns all clusters."""


def outcomes(rules: Sequence[Callable[..., Any]], snapshot: Snapshot) -> dict[Callable[..., Any], Outcome]:
    """Return the outcome of each of these classes of ``MirroredRule``."""
    every = {rule: Outcome() for rule in rules}
    running: list[tuple[MirroredRule, Outcome]] = []
    for rule, outcome in every.items():
        try:
            running.append((rule(snapshot), outcome))
        except Exception as error:  # noqa: BLE001 - objects may have any content
            outcome.failed[""] = error

    def fail(cluster: str, error: Exception) -> None:
        for _, outcome in running:
            outcome.failed.setdefault(cluster, error)

    try:
        for pod in _mirrored(snapshot, fail) if running else ():
            for item, outcome in running:
                try:
                    outcome.findings += item.of_pod(pod)
                except TooLargeError:
                    continue  # the virtual node refuses the pod or its update, with an event
                except Exception as error:  # noqa: BLE001 - objects may have any content
                    outcome.failed.setdefault(pod.lower.name, error)
    except Exception as error:  # noqa: BLE001 - objects may have any content
        return {rule: Outcome(failed={"": error}) for rule in rules}
    for each, outcome in running:
        outcome.findings += each.of_all()
    return every


def _mirrored(snapshot: Snapshot, fail: Callable[[str, Exception], None]) -> Iterator[MirroredPod]:
    """Yield the upper pods on our virtual nodes, if the pods of their lower cluster could be listed.

    Calls ``fail`` with the name of a lower cluster that has a malformed pod.
    """
    if not snapshot.upper.knows("Pod"):
        return
    places: dict[str, dict[tuple[str, str], int]] = {}
    for cluster in snapshot.lowers:
        try:
            if cluster.knows("Pod"):
                places[cluster.name] = _places(snapshot, cluster)
        except Exception as error:  # noqa: BLE001 - objects may have any content
            fail(cluster.name, error)
    clusters = virtual_nodes(snapshot)
    for upper in snapshot.upper.of("Pod"):
        lower = clusters.get(upper["spec"].get("nodeName", ""))
        if lower is not None and lower.name in places:
            place = places[lower.name].get((upper["metadata"]["uid"], upper["metadata"]["name"]))
            try:
                below = None if place is None else lower.of("Pod")[place]
            except Exception as error:  # noqa: BLE001 - objects may have any content
                fail(lower.name, error)
            else:
                yield MirroredPod(upper, lower, below)


def _places(snapshot: Snapshot, lower: View) -> dict[tuple[str, str], int]:
    """Return the position of each upper pod's lower pod, by UID and name of the upper pod."""
    places: dict[tuple[str, str], int] = {}
    is_ours = is_ours_in(snapshot, lower, "Pod")
    for place, pod in enumerate(lower.heads("Pod")):
        if is_ours(pod) and (uid := labels_of(pod).get(names.LABEL_UPPER_UID)):
            places.setdefault((uid, pod["metadata"]["name"]), place)
    return places

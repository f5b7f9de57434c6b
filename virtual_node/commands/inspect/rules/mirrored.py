"""One pass over all mirrored pods for the rules that compare an upper pod with its lower pod.

Decoding and translating pods takes most of the time of ``inspect``, so these rules share this work.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from clusterset.model import names
from controller_runtime.apimachinery.translation_budget import TooLargeError
from virtual_node.commands.inspect.facts import ClusterFacts, Findings, InspectFacts, InspectFinding
from virtual_node.examine.objects import labels_of
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.pods import lower_pod


@dataclass
class MirroredPod:
    """An upper pod on one of our virtual nodes, with its lower cluster and its lower pod."""

    upper: Mapping[str, Any]
    lower: ClusterFacts
    below: Mapping[str, Any] | None
    """The lower pod; None: it does not exist."""

    @property
    def options(self) -> PodOptions:
        """Return the options of the pod's virtual node."""
        return self.lower.nodes[self.upper["spec"]["nodeName"]].options

    @functools.cached_property
    def requested(self) -> dict[str, Any]:
        """Return the lower pod that the user requests now, without overrides."""
        return lower_pod.lower_pod(self.upper, self.options)

    @functools.cached_property
    def desired(self) -> dict[str, Any]:
        """Return the lower pod that the virtual node would create now."""
        return lower_pod.overridden(self.requested, self.upper, self.options)


class PodRule(abc.ABC):
    """A rule that is given each mirrored pod once."""

    name: ClassVar[str]

    def __init__(self, facts: InspectFacts) -> None:
        self.facts = facts

    @abc.abstractmethod
    def of_pod(self, pod: MirroredPod) -> Findings:
        """Yield findings about a pod; their ``subject.cluster`` is the pod's lower cluster."""

    def of_all(self) -> Findings:
        """Yield findings about all pods that were given; their ``subject.cluster`` is a lower cluster."""
        yield from ()


@dataclass(slots=True)
class Outcome:
    """What a rule found."""

    rule: str
    found: list[InspectFinding] = field(default_factory=list)
    failed: dict[str, Exception] = field(default_factory=dict)
    """First error by lower cluster."""
    error: Exception | None = None
    """Why the rule failed for all clusters; None: it did not."""


def applied(rules: Sequence[type[PodRule]], facts: InspectFacts) -> Mapping[object, Outcome]:
    """Return the outcome of each rule."""
    outcomes: dict[object, Outcome] = {rule: Outcome(rule.name) for rule in rules}
    running: list[tuple[PodRule, Outcome]] = []
    for rule in rules:
        try:
            running.append((rule(facts), outcomes[rule]))
        except Exception as error:  # noqa: BLE001 - objects may have any content
            outcomes[rule].error = error

    def fail(cluster: str, error: Exception) -> None:
        for _, outcome in running:
            outcome.failed.setdefault(cluster, error)

    try:
        for pod in _mirrored(facts, fail):
            for one, outcome in running:
                try:
                    outcome.found += one.of_pod(pod)
                except TooLargeError:
                    continue  # the virtual node refuses the pod or its update, with an event
                except Exception as error:  # noqa: BLE001 - objects may have any content
                    outcome.failed.setdefault(pod.lower.name, error)
    except Exception as error:  # noqa: BLE001 - objects may have any content
        return {rule: Outcome(rule.name, error=error) for rule in rules}
    for one, outcome in running:
        outcome.found += one.of_all()
    return outcomes


def _mirrored(facts: InspectFacts, fail: Callable[[str, Exception], None]) -> Iterator[MirroredPod]:
    """Yield the upper pods on our virtual nodes, if the pods of their lower cluster could be listed.

    Calls ``fail`` with the name of a lower cluster that has a malformed pod.
    """
    if not facts.upper.knows("Pod"):
        return
    places: dict[str, dict[tuple[str, str], int]] = {}
    for one in facts.lowers:
        try:
            if one.knows("Pod"):
                places[one.name] = _places(facts, one)
        except Exception as error:  # noqa: BLE001 - objects may have any content
            fail(one.name, error)
    clusters = facts.virtual_nodes()
    for upper in facts.upper.of("Pod"):
        lower = clusters.get(upper["spec"].get("nodeName", ""))
        if lower is not None and lower.name in places:
            place = places[lower.name].get((upper["metadata"]["uid"], upper["metadata"]["name"]))
            try:
                below = None if place is None else lower.of("Pod")[place]
            except Exception as error:  # noqa: BLE001 - objects may have any content
                fail(lower.name, error)
            else:
                yield MirroredPod(upper, lower, below)


def _places(facts: InspectFacts, lower: ClusterFacts) -> dict[tuple[str, str], int]:
    """Return the position of each upper pod's lower pod, by UID and name of the upper pod."""
    found: dict[tuple[str, str], int] = {}
    is_ours = facts.judge(lower, "Pod")
    for place, pod in enumerate(lower.heads("Pod")):
        if is_ours(pod) and (uid := labels_of(pod).get(names.LABEL_UPPER_UID)):
            found.setdefault((uid, pod["metadata"]["name"]), place)
    return found

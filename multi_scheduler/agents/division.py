"""The division agent: divides the pods of a controller over lower clusters by weight, free room or price.

Annotations of the pod declare the division (``clusterset/model/division.py``). The agent passes only one of the
clusters that earlier agents passed: the one that is most behind its share. A score could not do this, because the
scheduler adds its own scores and chooses clusters before the bindings of earlier pods are known.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from clusterset.model import division, names
from clusterset.model.division import Division
from clusterset.model.pod.groups import group_of
from controller_runtime.errors import ConfigError
from controller_runtime.events import EventType
from controller_runtime.objects import Object
from multi_scheduler.agent import NOTHING, AgentContext, Rejections
from multi_scheduler.agents import cost
from multi_scheduler.agents.by_node import AskedPod, ViewAgent
from multi_scheduler.agents.cost import Price, price_of
from multi_scheduler.virtual_node import VirtualNode

_ASSUMED_SECONDS = 60.0
"""Seconds after the filter for which a pod counts without being bound, for example while a volume is provisioned."""


@dataclass(eq=False)
class DividedPods:
    """Counts bound pods and filtered pods, because the scheduler may filter a pod before it binds earlier ones."""

    cluster_of: Callable[[str], str | None]
    """Returns the lower cluster of a virtual node; None: unknown."""
    clock: Callable[[], float] = time.monotonic
    _bound: dict[str, tuple[str, str]] = field(default_factory=dict)
    """UID of a pod → its controller and node."""
    _on: dict[str, Counter[str]] = field(default_factory=dict)
    """Controller → number of its bound pods by node."""
    _assumed: dict[str, dict[str, tuple[str, float]]] = field(default_factory=dict)
    """Controller → UID of a pod → lower cluster, and the time until which the pod counts there."""
    _controller: dict[str, str] = field(default_factory=dict)
    """Controller by UID of an assumed pod, in the order in which the pods were assumed."""

    def count(self, controller: str) -> Counter[str]:
        """Return the number of a controller's pods by lower cluster."""
        found: Counter[str] = Counter()
        for node, pods in self._on.get(controller, {}).items():
            if (cluster := self.cluster_of(node)) is not None:
                found[cluster] += pods
        now = self.clock()
        for uid, (cluster, until) in list(self._assumed.get(controller, {}).items()):
            if until <= now:
                self.forget(uid)
            else:
                found[cluster] += 1
        return found

    def assume(self, uid: str, controller: str, cluster: str) -> None:
        """Count a pod that passed the filter, for 60 seconds or until it is bound."""
        self.forget(uid)
        while self._controller:  # drop expired pods, which were never bound
            oldest, of = next(iter(self._controller.items()))
            if self._assumed[of][oldest][1] > self.clock():
                break
            self.forget(oldest)
        if uid not in self._bound:
            self._assumed.setdefault(controller, {})[uid] = cluster, self.clock() + _ASSUMED_SECONDS
            self._controller[uid] = controller

    def assumed(self, uid: str) -> str | None:
        """Return the cluster that was chosen for an unbound pod and counts it; None: no cluster."""
        controller = self._controller.get(uid)
        return self._assumed[controller][uid][0] if controller is not None else None

    def forget(self, uid: str) -> None:
        """Stop counting a pod that is not bound."""
        if (controller := self._controller.pop(uid, None)) is not None:
            del self._assumed[controller][uid]
            if not self._assumed[controller]:
                del self._assumed[controller]

    def changed(self, pod: Object) -> None:
        """Count a bound pod with a division; pods that are being deleted do not count."""
        self.forget(pod.uid)
        self._uncount(pod.uid)
        controller = controller_key(pod.namespace, pod.metadata.owner_references)
        node = pod.node_name
        is_divided = bool(pod.annotations.get(names.ANNOTATION_DIVISION))
        if controller and is_divided and pod.metadata.deletion_timestamp is None:
            self._bound[pod.uid] = controller, node
            self._on.setdefault(controller, Counter())[node] += 1

    def deleted(self, pod: Object) -> None:
        """Stop counting a pod that was deleted or has finished."""
        self.forget(pod.uid)
        self._uncount(pod.uid)

    def _uncount(self, uid: str) -> None:
        if (known := self._bound.pop(uid, None)) is None:
            return
        controller, node = known
        counts = self._on[controller]
        counts[node] -= 1
        if not counts[node]:
            del counts[node]
            if not counts:
                del self._on[controller]


def controller_key(namespace: str, references: Iterable[Mapping[str, object]]) -> str:
    """Return what identifies a pod's controller; empty: it has none.

    Any user can write the UID of another namespace's controller into a pod, so the namespace is part of the key.
    """
    found = next((reference.get("uid") for reference in references if reference.get("controller")), None)
    return f"{namespace}/{found}" if found else ""


_PRECISION = 10_000
"""Weight of the cheapest cluster in a division by price."""
_LEAST_COST = 1e-9
_READ_SECONDS = 3.0
"""Seconds that a filter call waits for the first list of pods after a start; without the list, all clusters look empty."""
_ANY_REQUESTS = {"cpu": 1000, "memory": 1024**3}
"""Requests by which prices are compared for a pod without requests."""
_ANNOTATION = f"annotation {names.ANNOTATION_DIVISION}"


class DivisionSettings(msgspec.Struct, rename="camel", forbid_unknown_fields=True):
    """The agent's configuration."""

    prices: dict[str, Price] = {}
    """Prices by lower cluster, for divisions by price. Labels of the lower node or of the virtual node take precedence."""


class DivisionAgent(ViewAgent[DivisionSettings]):
    """Filters virtual nodes for pods with a division; does not score."""

    settings_type = DivisionSettings
    is_last = True

    def __init__(self, context: AgentContext) -> None:
        """Read the settings, and count the bound pods.

        Raises:
            ConfigError: a setting is wrong, or there is no informer of bound pods.
        """
        super().__init__(context)
        self._clusters = context.clusters
        self._recorder = context.recorder
        self.pods = DividedPods(context.cluster_of)
        if context.bound_pods is None:
            raise ConfigError(f"agents[{context.name}]: the informer of bound pods is missing in its context")
        self._bound_pods = context.bound_pods
        self._bound_pods.on_change(self.pods.changed, self.pods.deleted)

    def unready(self) -> str | None:
        """Return why the agent is not ready; None: ready."""
        return None if self._bound_pods.has_synced else "the upper cluster's pods have not been read yet"

    async def filter(self, pod: Mapping[str, Any], nodes: Sequence[VirtualNode]) -> Rejections:
        """Pass only the cluster most behind its share and within the maximum skew. Without a division, reject nothing."""
        self.pods.forget(uid := pod["metadata"].get("uid", ""))
        try:
            declared = self._declared(pod)
        except ValueError as error:
            self._event(pod, "Warning", "InvalidDivision", f"The division has no effect: {error}")
            return NOTHING
        if declared is None or not nodes:
            return NOTHING
        if not await self._bound_pods.wait_synced(_READ_SECONDS):
            why = f"the upper cluster's pods have not been read yet, so {_ANNOTATION} cannot be followed"
            return Rejections({}, {node.name: why for node in nodes})
        controller = _controller(pod)
        counts = self.pods.count(controller)
        weights, reasons = self._weights(declared, pod, nodes, counts)
        if not weights:
            text = f"The division has no effect: {_ANNOTATION}: no lower cluster has a price"
            self._event(pod, "Warning", "InvalidDivision", text)
            return NOTHING
        candidates = {node.cluster for node in nodes}
        chosen = division.choose(weights, counts, candidates, declared.max_skew)
        first = division.behind(weights, counts)[0]
        others = sum(counts[cluster] for cluster in weights)
        if chosen is None:
            for one in candidates & weights.keys():
                reasons[one] = (
                    f"lower cluster {one} has {counts[one]} of {others} pods, and one more is above its share and the "
                    f"maximum skew of {declared.max_skew} ({_ANNOTATION}); lower cluster {first} cannot take the pod"
                )
        else:
            self.pods.assume(uid, controller, chosen)
            if chosen != first and not division.is_within(weights, counts, chosen, 1):
                text = f"Lower cluster {chosen} gets more than its share, because {first} cannot take the pod"
                self._event(pod, "Normal", "DivisionExceeded", text)
            for one in (candidates & weights.keys()) - {chosen}:
                text = f"lower cluster {one} has {counts[one]} of {others} pods, and {chosen} is next in {_ANNOTATION}"
                reasons[one] = text
        return Rejections({}, {node.name: reasons[node.cluster] for node in nodes if node.cluster != chosen})

    def filtered(self, pod: Mapping[str, Any], passing: Sequence[VirtualNode]) -> None:
        """Stop counting a pod for a cluster that a later agent rejected."""
        uid = pod["metadata"].get("uid", "")
        if self.pods.assumed(uid) not in {node.cluster for node in passing}:
            self.pods.forget(uid)

    async def preempt(
        self, pod: Mapping[str, Any], node: VirtualNode, victims: Sequence[str]
    ) -> Sequence[str] | None:
        """Return the victims; None if the pod could not use their room, because its division forbids the cluster."""
        try:
            declared = self._declared(pod)
        except ValueError:
            return victims
        if declared is None:
            return victims
        counts = self.pods.count(_controller(pod))
        weights, _ = self._weights(declared, pod, [node], counts)
        return victims if division.choose(weights, counts, {node.cluster}, declared.max_skew) else None

    def bars_real_nodes(self, pod: Mapping[str, Any]) -> str:
        """Return why a pod with a valid division must not use real nodes; empty: it may."""
        try:
            declared = self._declared(pod)
        except ValueError:
            return ""
        return f"pods with {_ANNOTATION} run in lower clusters only" if declared is not None else ""

    def _declared(self, pod: Mapping[str, Any]) -> Division | None:
        """Return the pod's division; None: it has none.

        Raises:
            ValueError: the annotations cannot be used; the message names the annotation.
        """
        metadata = pod["metadata"]
        annotations = metadata.get("annotations") or {}
        found = division.parse(annotations)
        if found is None:
            return None
        unknown = next((cluster for cluster in found.weights if cluster not in self._clusters), None)
        if unknown is not None:
            raise ValueError(f"{_ANNOTATION}: there is no lower cluster {unknown[:60]}")
        if (
            group_of(metadata.get("namespace", ""), metadata.get("labels") or {}, annotations, pod["spec"])
            is not None
        ):
            raise ValueError(f"{_ANNOTATION}: the pod is in a pod group, and the group chooses the cluster")
        if not _controller(pod):
            raise ValueError(f"{_ANNOTATION}: the pod has no controller, such as a ReplicaSet")
        return found

    def _weights(
        self,
        declared: Division,
        pod: Mapping[str, Any],
        nodes: Sequence[VirtualNode],
        counts: Mapping[str, int],
    ) -> tuple[Mapping[str, int], dict[str, str]]:
        """Return the weights by cluster, and for clusters without a weight the reason."""
        node_of = {node.cluster: node for node in nodes}
        if declared.by == "weight":
            rest = node_of.keys() - declared.weights.keys()
            return declared.weights, {one: f"lower cluster {one} is not in {_ANNOTATION}" for one in rest}
        if declared.by == "room":
            # The controller's own pods count as room, so that the weights stay the same while it creates more pods.
            return {one: max(1, counts[one] + self._room(pod, node)) for one, node in node_of.items()}, {}
        costs = {one: found for one, node in node_of.items() if (found := self._cost(pod, node)) is not None}
        least = min(costs.values(), default=0.0)
        weights = {one: max(1, round(_PRECISION * least / found)) for one, found in costs.items()}
        rest = node_of.keys() - weights.keys()
        return weights, {one: f"lower cluster {one} has no price ({_ANNOTATION}: price)" for one in rest}

    def _room(self, pod: Mapping[str, Any], node: VirtualNode) -> int:
        """Return the number of pods like this one for which the sum of a cluster's free resources is enough."""
        predicted = self._view.prediction(pod, node)
        if predicted is None:
            return 0
        total, used = self._view.whole(pod, node)
        asked = {one: amount for one, amount in predicted.wanted.requests.items() if amount > 0}
        return max(0, min(((total[one] - used[one]) // amount for one, amount in asked.items()), default=0))

    def _cost(self, pod: Mapping[str, Any], node: VirtualNode) -> float | None:
        """Return the cost of the pod in a cluster; None: unknown."""
        lower = next(iter(self._view.nodes(pod, node)), None)
        price = price_of(lower.labels if lower is not None else {}, node, self._settings.prices)
        if price is None:
            return None
        found = cost.hourly(AskedPod(pod).requests or _ANY_REQUESTS, price)
        return max(_LEAST_COST, found) if math.isfinite(found) else None

    def _event(self, pod: Mapping[str, Any], kind: EventType, reason: str, text: str) -> None:
        if self._recorder is not None:
            self._recorder.event({"apiVersion": "v1", "kind": "Pod", **pod}, kind, reason, text)


def _controller(pod: Mapping[str, Any]) -> str:
    metadata = pod["metadata"]
    return controller_key(metadata.get("namespace", ""), metadata.get("ownerReferences") or ())

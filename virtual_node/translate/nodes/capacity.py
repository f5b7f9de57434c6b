"""The resources that a virtual node offers: the sum of its lower nodes minus what unmanaged pods use there.

``capacity`` is the sum over lower nodes that are Ready and schedulable. Virtual nodes in the lower cluster
count only if the selector requires them (``type: virtual-kubelet``). ``allocatable`` is the sum of these
nodes' allocatable, minus the requests of unmanaged (foreign) pods bound to them, minus the reserve. Owned
pods are not subtracted, because the upper scheduler already counts them on the virtual node. Nodes that the lower
cluster's autoscaler can add are part of both.

If a lower node is cordoned or not Ready, its own pods stay, and the upper scheduler subtracts their requests from the sum of the
other nodes. So these requests are added to both sums (``hold``): the room that is left is that of the nodes that count. If no
node counts, both are empty.

An update only computes what changed, because a hostile cluster may have many nodes with many resources. Sums are
integers, so rounding errors do not accumulate.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import autoscaling as growth
from clusterset.model import declared_features, names
from clusterset.model.autoscaling import Autoscaling
from clusterset.model.pod.conditions import is_true
from controller_runtime.apimachinery import quantity
from virtual_node.translate.base import fields
from virtual_node.translate.nodes.node import is_real

PODS = "pods"
_MOST_NODES = 10_000
"""Maximum number of lower nodes that count; Kubernetes supports 5,000."""
_MOST_NAMES = 1000
"""Number of resources of all lower nodes above which further ones count as not offered."""
_MOST_RESOURCES = 100
"""Maximum number of resources of a virtual node. A lower node has at most 64."""
_LARGEST = 2**63 - 1
"""Maximum amount of a resource; the API server accepts no larger integer."""
_node_info = fields.fields(
    {
        **dict.fromkeys(("osImage", "kernelVersion", "containerRuntimeVersion"), fields.word(256)),
        **dict.fromkeys(("operatingSystem", "architecture"), fields.matching(fields.is_label_value)),
    }
)
"""Operating system and architecture become labels of the virtual node."""


@dataclass(slots=True)
class _Node:
    counts: bool
    is_ready: bool
    """Also if it is cordoned."""
    capacity: dict[str, int]
    allocatable: dict[str, int]
    facts: dict[str, Any]
    """The node's ``labels``, ``nodeInfo`` and ``declaredFeatures``, as input of ``node_object``."""
    foreign: dict[str, int]
    """The requests of foreign pods, see ``Capacity._foreign``."""

    def available(self, name: str) -> int:
        """Return the free amount of a resource; 0 if foreign pods request more than the node has."""
        return max(0, self.allocatable[name] - self.foreign.get(name, 0))


@dataclass(slots=True)
class _Total:
    """The sum of quantities by resource. A resource that no summand has any more is removed."""

    sums: dict[str, int] = field(default_factory=dict)
    _summands: dict[str, int] = field(default_factory=dict)

    def within_limit(self, quantities: Mapping[str, int]) -> dict[str, int]:
        """Return a new summand without further resources if there are too many."""
        has_room = len(self.sums) < _MOST_NAMES
        return {name: count for name, count in quantities.items() if has_room or name in self.sums}

    def add(self, quantities: Mapping[str, int], sign: int) -> None:
        """Add a summand, or remove it with sign -1."""
        _add(self.sums, quantities, sign)
        _add(self._summands, dict.fromkeys(quantities, 1), sign)
        for name in quantities:
            if not self._summands[name]:
                del self.sums[name], self._summands[name]


class Capacity:
    """The resource sums of one virtual node, updated as its lower nodes and foreign pods change."""

    def __init__(
        self,
        *,
        node_selector: Mapping[str, str] | None = None,
        reserve: Mapping[str, str] | None = None,
        autoscaling: Autoscaling | None = None,
    ) -> None:
        """Create sums without nodes and pods.

        Args:
            node_selector: labels that a lower node must have; empty: all nodes count.
            reserve: a quantity or percentage per resource, subtracted from allocatable.
            autoscaling: nodes that can be added; None: none.
        """
        self._selector = dict(node_selector or {})
        self._reserve = dict(reserve or {})
        self._autoscaling = autoscaling
        self._nodes: dict[str, _Node] = {}
        self._capacity, self._allocatable = _Total(), _Total()
        """Of the nodes that count."""
        self._closed: set[str] = set()
        self._held: dict[str, tuple[str, dict[str, int]]] = {}
        """Node and requests of each own pod on a node that does not count, by upper uid."""
        self._held_sum = _Total()
        self._pods: dict[str, tuple[str, dict[str, int]]] = {}
        """Node and requests of each foreign pod, by uid."""
        self._foreign: dict[str, dict[str, int]] = {}
        """The sums of their requests by node, also of nodes that are not selected or not known yet. Kept up to date for
        those, too, because summing the pods of a node again at each change of its labels would take long."""

    @property
    def ready_nodes(self) -> int:
        """Number of selected lower nodes that are Ready and schedulable."""
        return sum(node.counts for node in self._nodes.values())

    @property
    def running_nodes(self) -> int:
        """Number of selected lower nodes that are Ready, cordoned ones, too; their pods keep running."""
        return sum(node.is_ready for node in self._nodes.values())

    @property
    def selected_nodes(self) -> int:
        """Number of lower nodes that the selector matches, ready or not."""
        return len(self._nodes)

    @property
    def closed_nodes(self) -> Collection[str]:
        """Names of the selected lower nodes that do not count, also not as nodes that can be added."""
        return self._closed

    def hold(self, uid: str, node_name: str, requests: Mapping[str, int]) -> None:
        """Add or update an own pod on one of ``closed_nodes``; nothing happens if its node is another one.

        Args:
            uid: of the upper pod.
            node_name: the lower node.
            requests: those that the upper scheduler counts, in the form that ``pod_requests`` returns.
        """
        self.release(uid)
        if node_name in self._closed:
            self._held[uid] = node_name, {**requests, PODS: 1}
            self._held_sum.add(self._held[uid][1], 1)

    def release(self, uid: str) -> bool:
        """Remove an own pod that has ended; report whether it was held."""
        if (held := self._held.pop(uid, None)) is None:
            return False
        self._held_sum.add(held[1], -1)
        return True

    def nodes(self) -> list[dict[str, Any]]:
        """Return labels, nodeInfo and features of the lower nodes that count, or of all selected ones if none counts."""
        counting = [node.facts for node in self._nodes.values() if node.counts]
        return counting or [node.facts for node in self._nodes.values()]

    def foreign(self) -> dict[str, dict[str, int]]:
        """Return the requests of foreign pods by selected lower node, in the units of ``quantity``."""
        return {name: dict(node.foreign) for name, node in self._nodes.items()}

    def upsert_node(self, node: Mapping[str, Any]) -> None:
        """Add or update a lower node; remove it if the selector does not match. Nodes above the limit do not count."""
        name = node["metadata"]["name"]
        labels = node["metadata"].get("labels") or {}
        if not self._selects(node):
            self.remove_node(name)
            return
        status = node.get("status") or {}
        known = self._nodes.get(name)
        if known is None and len(self._nodes) >= _MOST_NODES:
            return
        if known is not None:
            self._count(known, -1)
        added = self._nodes[name] = _Node(
            counts=node_counts(node),
            is_ready=_is_ready(node),
            capacity=self._capacity.within_limit(_counts(status.get("capacity"))),
            allocatable=self._allocatable.within_limit(_counts(status.get("allocatable"))),
            facts={
                "labels": labels,
                "nodeInfo": _node_info(status.get("nodeInfo")) or {},
                "declaredFeatures": declared_features.declared(node),
            },
            foreign=self._foreign.setdefault(name, {}),
        )
        self._count(added, 1)
        if added.counts or self._shapes(added):
            self._open(name)
        else:
            self._closed.add(name)

    def _open(self, node_name: str) -> None:
        self._closed.discard(node_name)
        for uid in [uid for uid, (name, _) in self._held.items() if name == node_name]:
            self.release(uid)

    def _count(self, node: _Node, sign: int) -> None:
        if node.counts:
            self._capacity.add(node.capacity, sign)
            self._allocatable.add({name: node.available(name) for name in node.allocatable}, sign)

    def _selects(self, node: Mapping[str, Any]) -> bool:
        # If two clusters each offer the other as a virtual node, each would count the other's sums, and the
        # sums would grow with every write.
        if names.LABEL_NODE_TYPE not in self._selector and not is_real(node):
            return False
        labels = node["metadata"].get("labels") or {}
        return all(labels.get(key) == value for key, value in self._selector.items())

    def remove_node(self, name: str) -> None:
        """Remove a lower node that was deleted or is not selected any more."""
        if (removed := self._nodes.pop(name, None)) is not None:
            self._count(removed, -1)
            self._open(name)
            if not removed.foreign:
                del self._foreign[name]

    def upsert_pod(self, uid: str, node_name: str, requests: Mapping[str, int], *, counts: bool) -> None:
        """Add or update a foreign pod.

        Args:
            uid: the pod's uid.
            node_name: the lower node that it is bound to.
            requests: in the form that ``pod_requests`` returns.
            counts: whether the pod is bound and not finished; if not, it is removed.
        """
        known = self._pods.get(uid)
        if not counts:
            if known is not None:
                self.remove_pod(uid)
            return
        wanted = {**{sys.intern(name): count for name, count in requests.items()}, PODS: 1}
        if known == (node_name, wanted):
            return
        self.remove_pod(uid)
        self._pods[uid] = (node_name, wanted)
        self._use(node_name, wanted, 1)

    def _use(self, node_name: str, requests: Mapping[str, int], sign: int) -> None:
        """Add the requests of a pod to those on its node, or remove them with sign -1."""
        node, foreign = self._nodes.get(node_name), self._foreign.setdefault(node_name, {})
        before = {name: node.available(name) for name in requests if name in node.allocatable} if node else {}
        _add(foreign, requests, sign)
        # Lower users choose the names, so those that no pod requests any more are removed.
        for name in requests:
            if not foreign[name]:
                del foreign[name]
        if node is None:
            if not foreign:
                del self._foreign[node_name]
        elif node.counts:
            _add(
                self._allocatable.sums,
                {name: node.available(name) - count for name, count in before.items()},
                1,
            )

    def remove_pod(self, uid: str) -> None:
        """Remove a foreign pod that was deleted or has finished."""
        known = self._pods.pop(uid, None)
        if known is None:
            return
        self._use(*known, -1)

    def totals(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return capacity and allocatable as quantities, never negative."""
        capacity, allocatable = dict(self._capacity.sums), dict(self._allocatable.sums)
        more = self._growth()
        _add(capacity, more, 1)
        _add(allocatable, more, 1)
        for name, text in self._reserve.items():
            if name in allocatable:
                allocatable[name] = max(0, allocatable[name] - _reserved(name, text, allocatable[name]))
        if allocatable:
            # Otherwise no node counts. Programs take a virtual node without allocatable pods for cordoned (``movable.has_places``).
            for sums in (capacity, allocatable):
                _add(sums, self._held_sum.sums, 1)
        return _rendered(capacity), _rendered(allocatable)

    def _growth(self) -> dict[str, int]:
        # A node that is not Ready counts as one that can be added. Otherwise, the sum would be too low while a new node starts.
        if self._autoscaling is None:
            return {}
        found = (self._shapes(node) for node in self._nodes.values() if node.counts)
        return growth.most(self._autoscaling, [shapes for shapes in found if shapes])

    def _shapes(self, node: _Node) -> Sequence[int]:
        """Return the configured shapes of nodes that can be added which a node has; empty: none."""
        if self._autoscaling is None:
            return ()
        return growth.matching_shapes(self._autoscaling, self._selector, node.facts["labels"])


def node_counts(node: Mapping[str, Any]) -> bool:
    """Report whether a lower node can take pods: it is Ready and not cordoned."""
    is_cordoned = (node.get("spec") or {}).get("unschedulable")
    return not is_cordoned and _is_ready(node)


def _is_ready(node: Mapping[str, Any]) -> bool:
    return is_true(node.get("status"), "Ready")


def _counts(quantities: Mapping[str, Any] | None) -> dict[str, int]:
    found = fields.quantities(quantities) or {}
    return {sys.intern(name): max(0, quantity.of(name, value)) for name, value in found.items()}


def _add(total: dict[str, int], more: Mapping[str, int], sign: int) -> None:
    for name, count in more.items():
        total[name] = total.get(name, 0) + sign * count


def _reserved(name: str, text: str, available: int) -> int:
    if text.endswith("%"):
        return int(available * float(text[:-1]) / 100)
    return quantity.of(name, text)


def _rendered(counts: Mapping[str, int]) -> dict[str, str]:
    """Return quantities by resource, those of Kubernetes first, so that the devices of a hostile cluster displace none."""
    known = sorted(counts, key=lambda name: ("/" in name, name))[:_MOST_RESOURCES]
    return {name: quantity.render(name, min(counts[name], _LARGEST)) for name in sorted(known)}

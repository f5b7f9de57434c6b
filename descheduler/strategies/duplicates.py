"""RemoveDuplicates for clusters: spreads an owner's pods over the virtual nodes that admit them.

sigs.k8s.io/descheduler allows one pod of an owner per node if there are enough nodes. A virtual node is a whole
cluster, so here each node may have a fair share: the owner's pods divided by the virtual nodes that admit them,
rounded up. Pods beyond the fair share are moved, youngest first.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import ClassVar

import msgspec

from clusterset.model import names
from controller_runtime.objects import Object
from descheduler import pods
from descheduler.moving.move_reports import Move
from descheduler.strategies.base import Params, PeriodicStrategy


class DuplicatesParams(Params):
    """Parameters of ``RemoveDuplicates``."""

    exclude_owner_kinds: list[str] = msgspec.field(default_factory=list)


class Duplicates(PeriodicStrategy):
    """Spreads an owner's pods over clusters."""

    name: ClassVar[str] = "RemoveDuplicates"
    aliases: ClassVar[tuple[str, ...]] = ("Duplicates",)
    params_type: ClassVar[type[Params]] = DuplicatesParams

    async def work_through(self) -> None:
        """Move excess pods of all owners."""
        for owned in self._owned().values():
            nodes = [node.name for node in self.context.view.open_nodes_for(owned[0])]
            for pod, why in excess(owned, nodes):
                await self.try_move(pod, Move(strategy=self.name, reason=why))

    def _owned(self) -> Mapping[str, Sequence[Object]]:
        excluded = set(self.params.exclude_owner_kinds)
        found: dict[str, list[Object]] = defaultdict(list)
        for node in self.context.view.virtual_nodes():
            for pod in self.context.view.pods_on(node.name):
                owner = pod.controller or {}
                if names.ANNOTATION_DIVISION in pod.annotations:
                    continue  # the division decides how many pods are on a node
                if owner.get("kind") not in excluded and self.is_candidate(pod):
                    found[pods.owner_key(pod)].append(pod)
        return found


def excess(owned: Sequence[Object], nodes: Sequence[str]) -> list[tuple[Object, str]]:
    """Return the pods of one owner to move, each with the reason.

    Args:
        owned: movable pods of the owner.
        nodes: names of the virtual nodes that admit them.

    Returns:
        At most as many pods as nodes below their fair share can take, so that moved pods are not moved again.
    """
    if len(nodes) < 2:
        return []
    fair = math.ceil(len(owned) / len(nodes))
    here: dict[str, list[Object]] = {name: [] for name in nodes}
    for pod in owned:
        here.setdefault(pod.node_name, []).append(pod)
    room = sum(max(0, fair - len(here[name])) for name in nodes)
    chosen: list[tuple[Object, str]] = []
    for name, crowd in here.items():
        crowd.sort(key=lambda pod: (pods.created(pod), pod.name), reverse=True)
        for pod in crowd[: max(0, len(crowd) - fair)]:
            if len(chosen) == room:
                return chosen
            chosen.append((pod, f"{len(crowd)} pods of its owner are on {name}, a fair share is {fair}"))
    return chosen

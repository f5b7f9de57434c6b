"""What takes room on a lower node: a pod that is there, or the promise of one. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from multi_scheduler.fit.cluster.pod_requirements import Port, Term


@dataclass(slots=True, eq=False)
class Placed:
    """A pod on a node, or a reservation of one."""

    node: str
    requests: Mapping[str, int]
    ports: tuple[Port, ...] = ()
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    anti_affinity: tuple[Term, ...] = ()
    is_ending: bool = False
    """It is being deleted: it still takes room, and keeps others away, but nothing is spread from it."""
    devices: Sequence[int] = ()
    """The devices of the node that it takes its divisible resource from. Empty: not known."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Of cpu and memory, where they differ from the requests."""
    since: float = math.inf
    """When the lower scheduler bound the pod, in seconds since the epoch. A reservation is not bound yet."""

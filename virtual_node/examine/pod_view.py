"""What is known of one pod in depth, for the rules that explain why it does not run."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from clusterset.model.pod.conditions import is_finished
from controller_runtime.apimachinery import timestamps
from virtual_node.examine.codes import Code
from virtual_node.examine.finding import Finding
from virtual_node.examine.objects import Json, cluster_of, is_deleting, key, last_seen
from virtual_node.translate.pods.synthetic_status import LOWER_POD_DELETED


class Stage(enum.Enum):
    """How far a pod's life has come, which decides the rules that apply."""

    ALIVE = "alive"
    """It waits, starts or runs."""
    COMPLETED = "completed"
    FAILED = "failed"
    DELETING = "deleting"
    """Containers that end are normal then."""


@dataclass(frozen=True, slots=True)
class PodView:
    """What was read about one pod."""

    pod: Mapping[str, Any]
    node: Mapping[str, Any] | None
    """The node that the pod is bound to; None: not bound, does not exist, or may not be read."""
    lease: Mapping[str, Any] | None
    """The node's Lease; None: there is none, or it may not be read."""
    lower: Mapping[str, Any] | None
    """The pod in the lower cluster; None: there is none, or the lower cluster was not read."""
    events: Sequence[Mapping[str, Any]]
    """Events about the pod, the oldest first."""
    claim_events: Sequence[Mapping[str, Any]] = field(default=(), kw_only=True)
    """Warning events about the pod's claims that are not bound, the oldest first."""
    virtual_nodes: Sequence[Mapping[str, Any]] | None
    """The virtual nodes; None: the caller may not list them."""
    now: datetime
    is_lower_read: bool = False
    """Whether the lower cluster was read successfully."""
    logs: Sequence[str] = field(default_factory=tuple)
    """The last log lines of the first failed, else the first ended container; empty: none, or not readable."""

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return str(self.pod["metadata"]["name"])

    @property
    def namespace(self) -> str:
        """Return the pod's namespace."""
        return str(self.pod["metadata"]["namespace"])

    @property
    def cluster(self) -> str:
        """Return the name of the pod's lower cluster; ``?``: unknown."""
        return "?" if self.node is None else cluster_of(self.node)

    @property
    def stage(self) -> Stage:
        """Return how far the pod's life has come."""
        status = self.pod.get("status") or {}
        if is_deleting(self.pod):
            return Stage.DELETING
        if not is_finished(status):
            return Stage.ALIVE
        # A program may end with code 0 when its pod is deleted.
        has_failed = status["phase"] == "Failed" or status.get("reason") == LOWER_POD_DELETED
        return Stage.FAILED if has_failed else Stage.COMPLETED

    @property
    def is_running(self) -> bool:
        """Whether the pod's phase is Running, ready or not."""
        return bool((self.pod.get("status") or {}).get("phase") == "Running")

    @property
    def age(self) -> float:
        """Return the seconds since the pod was created; 0: unknown."""
        created = self.pod["metadata"].get("creationTimestamp")
        return (self.now - timestamps.parse(created)).total_seconds() if created else 0.0

    def newest(self, *reasons: str) -> tuple[str, str]:
        """Return reason and message of the newest event with one of these reasons; empty: there is none."""
        newest = reversed(self.events)
        found: Json = next((event for event in newest if event.get("reason") in reasons), {})
        return str(found.get("reason") or ""), str(found.get("message") or "")

    def ordered(self) -> PodView:
        """Return the view with sorted events and nodes, because the API server's order may vary."""
        nodes = self.virtual_nodes and sorted(self.virtual_nodes, key=key)
        return replace(self, events=sorted(self.events, key=_event_order), virtual_nodes=nodes)

    def finding(
        self,
        code: Code,
        cause: str,
        evidence: Sequence[str] = (),
        next_steps: Sequence[str] = (),
        *,
        rank: int = 0,
    ) -> Finding:
        """Return a finding about the pod; the cause is a sentence about it."""
        node = str(self.pod["spec"].get("nodeName") or "")
        return Finding(
            code=code,
            kind="Pod",
            names=[key(self.pod)],
            cause=cause,
            evidence=evidence,
            next_steps=next_steps,
            node=node,
            rank=rank,
        )


def _event_order(event: Json) -> tuple[str, ...]:
    return last_seen(event), str(event.get("reason") or ""), str(event.get("message") or "")

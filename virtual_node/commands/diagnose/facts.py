"""Types shared by reading, rules and printing: what was read about one pod, and findings."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from controller_runtime.apimachinery import timestamps
from virtual_node.commands.diagnose.codes import Code

FINE = 9


@dataclass(frozen=True, slots=True)
class PodFacts:
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
    lower_error: str = ""
    """Why the lower cluster could not be read; empty: it was read, or no kubeconfig was given."""
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
    def is_running(self) -> bool:
        """Whether the pod's phase is Running, ready or not."""
        return bool((self.pod.get("status") or {}).get("phase") == "Running")

    @property
    def age(self) -> float:
        """Return the seconds since the pod was created; 0: unknown."""
        created = self.pod["metadata"].get("creationTimestamp")
        return (self.now - timestamps.parse(created)).total_seconds() if created else 0.0


@dataclass(frozen=True, slots=True)
class DiagnoseFinding:
    """One problem, or the statement that there is none."""

    code: Code
    """Stable code, for programs and the documentation."""
    title: str
    evidence: Sequence[str] = ()
    next_steps: Sequence[str] = ()
    rank: int = field(default=0, kw_only=True)
    """0: this alone stops the pod; higher: a consequence, or possibly transient; ``FINE``: nothing is wrong."""


Rule = Callable[[PodFacts], Iterator[DiagnoseFinding]]

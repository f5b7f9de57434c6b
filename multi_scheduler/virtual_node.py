"""A virtual node, as the scheduler's extender and its agents see it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class VirtualNode:
    """A node of the upper cluster that represents a lower cluster, or a pool of that cluster's nodes."""

    name: str
    cluster: str
    """The lower cluster's name in the configuration."""
    labels: Mapping[str, str]
    pool: Mapping[str, str]
    """Labels of the lower nodes that the virtual node represents; empty: all nodes of the lower cluster."""
    annotations: Mapping[str, str] = field(default_factory=dict)
    allocatable: Mapping[str, Any] = field(default_factory=dict)
    """Resources as quantities; empty: unknown."""

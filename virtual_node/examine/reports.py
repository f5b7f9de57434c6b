"""Encodes and reads what a process reports about itself in annotations on its virtual nodes' Leases.

Users cannot write in ``kube-node-lease``. The process renews these Leases anyway, and all tools read them,
so reports need no further requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import msgspec

from clusterset.model import names
from virtual_node.examine.objects import Json, one_line

_KINDS = ("rejected", "failed", "expiring")
_MOST = 20
"""Maximum number of published entries of each kind."""


@dataclass(frozen=True, slots=True)
class Report:
    """Problems that only the process knows: causes by name of a lower cluster."""

    rejected: Mapping[str, str] = field(default_factory=dict)
    """Configurations that are not applied; the empty name is the whole file."""
    failed: Mapping[str, str] = field(default_factory=dict)
    """Lower clusters whose controllers do not run."""
    expiring: Mapping[str, str] = field(default_factory=dict)
    """Lower clusters whose API server's certificate expires soon."""

    def text(self) -> str:
        """Return the value of the annotation; empty: nothing to report."""
        parts = {
            name: {cluster: one_line(why) for cluster, why in sorted(causes.items())[:_MOST]}
            for name in _KINDS
            if (causes := getattr(self, name))
        }
        return json.dumps(parts) if parts else ""


def read(leases: Iterable[Json]) -> Report:
    """Return the merged reports of all Leases; invalid annotations are ignored."""
    found: dict[str, dict[str, str]] = {name: {} for name in _KINDS}
    for lease in leases:
        text = ((lease.get("metadata") or {}).get("annotations") or {}).get(names.ANNOTATION_FAULTS)
        if not text:
            continue
        try:
            parts = msgspec.json.decode(text, type=dict[str, dict[str, str]])
        except msgspec.DecodeError:
            continue
        for name, causes in found.items():
            causes.update(parts.get(name, {}))
    return Report(**found)

"""What Leases say: whether the holder is alive, and what a process reports about itself in annotations. Does no IO.

Users cannot write in ``kube-node-lease``. A process renews the Leases of its virtual nodes anyway, and all tools read them, so
reports need no further requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import msgspec

from clusterset.model import names
from controller_runtime.apimachinery import timestamps
from virtual_node.examine.objects import Json, one_line

NODE_LEASE_SECONDS = 40.0
"""Duration of a node's Lease, and for Leases without a duration."""


@dataclass(frozen=True, slots=True)
class LeaseAge:
    """When a Lease was last renewed, and how long a renewal lasts."""

    seconds: float
    """Time since the last renewal."""
    duration: float
    holder: str
    """Identity of the holder; empty: the Lease is released."""

    def is_expired(self, durations: int = 1) -> bool:
        """Report whether the last renewal is more than this number of durations ago."""
        return self.seconds > durations * self.duration

    def __str__(self) -> str:
        return f"was last renewed {self.seconds:.0f} s ago (it lasts {self.duration:.0f} s)"


def lease_age(lease: Json | None, now: datetime, *, duration: float = NODE_LEASE_SECONDS) -> LeaseAge | None:
    """Return the age of a Lease by the API server's clock; None: there is no Lease, or it was never renewed.

    A renewal lasts ``duration`` seconds if the Lease does not say so.
    """
    spec = (lease or {}).get("spec") or {}
    if not spec.get("renewTime"):
        return None
    age = (now - timestamps.parse(str(spec["renewTime"]))).total_seconds()
    return LeaseAge(
        age, float(spec.get("leaseDurationSeconds") or duration), str(spec.get("holderIdentity") or "")
    )


def active_lease(leases: Iterable[Json]) -> Json | None:
    """Return the most recently renewed Lease, preferably a held Lease; None: there is no Lease.

    Another or an earlier installation may have left a Lease of the same name in another namespace.
    """

    def rank(lease: Json) -> tuple[bool, str]:
        spec = lease.get("spec") or {}
        return bool(spec.get("holderIdentity")), str(spec.get("renewTime") or "")

    return max(leases, key=rank, default=None)


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


def read_reports(leases: Iterable[Json]) -> Report:
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

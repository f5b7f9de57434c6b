"""Judges from a Lease whether its holder is alive. Does no IO."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from controller_runtime.apimachinery import timestamps
from virtual_node.examine.objects import Json

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
    """Return the age of a Lease; None: there is no Lease, or it was never renewed.

    Args:
        lease: the Lease.
        now: current time by the API server's clock.
        duration: seconds that a renewal lasts if the Lease does not say so.
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

"""The content of a Lease as plain dicts, with the fields of client-go's LeaderElectionRecord. No IO."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from controller_runtime import resources
from controller_runtime.apimachinery.timestamps import micro_time


class Term(NamedTuple):
    """The time in which one candidate holds a Lease."""

    lease: str
    """UID of the Lease, which changes if the Lease is deleted and created again."""
    transitions: int
    """Number of earlier changes of the holder."""

    @property
    def next(self) -> Term:
        """Return the term of the next holder."""
        return self._replace(transitions=self.transitions + 1)


def spec_of(lease: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the Lease's spec; empty if there is none."""
    return (lease or {}).get("spec") or {}


def holder_of(lease: Mapping[str, Any] | None) -> str:
    """Return the holder's identity; empty if there is none."""
    return str(spec_of(lease).get("holderIdentity") or "")


def term_of(lease: Mapping[str, Any] | None) -> Term:
    """Return the current term of a Lease."""
    metadata = (lease or {}).get("metadata") or {}
    return Term(str(metadata.get("uid") or ""), int(spec_of(lease).get("leaseTransitions") or 0))


def new(namespace: str, name: str) -> dict[str, Any]:
    """Return a new Lease without a spec."""
    return {
        "apiVersion": resources.LEASES.api_version,
        "kind": resources.LEASES.kind,
        "metadata": {"name": name, "namespace": namespace},
    }


def held(lease: Mapping[str, Any], *, identity: str, duration: float, now: datetime) -> dict[str, Any]:
    """Return the Lease as a candidate writes it to acquire or renew it; other content is kept.

    The duration is rounded up to full seconds.
    """
    old = spec_of(lease)
    is_renewal = holder_of(lease) == identity
    stamp = micro_time(now)
    transitions = int(old.get("leaseTransitions") or 0)
    spec = old | {
        "holderIdentity": identity,
        "leaseDurationSeconds": math.ceil(duration),
        "acquireTime": (old.get("acquireTime") or stamp) if is_renewal else stamp,
        "renewTime": stamp,
        "leaseTransitions": transitions if is_renewal or not old else transitions + 1,
    }
    return {**lease, "spec": spec}


def released(lease: Mapping[str, Any], *, now: datetime) -> dict[str, Any]:
    """Return the Lease without a holder, so that any candidate can acquire it at once."""
    stamp = micro_time(now)
    free = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": stamp, "renewTime": stamp}
    return {**lease, "spec": spec_of(lease) | free}

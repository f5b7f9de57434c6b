"""What candidates write into a Lease: pure, plain dicts, fields as client-go's LeaderElectionRecord has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api.timestamps import micro_time


def spec_of(lease: Mapping[str, Any] | None) -> dict[str, Any]:
    """The Lease's spec; empty when there is none."""
    return (lease or {}).get("spec") or {}


def holder_of(lease: Mapping[str, Any] | None) -> str:
    """The holder's identity; empty when nobody holds it."""
    return str(spec_of(lease).get("holderIdentity") or "")


def new(namespace: str, name: str) -> dict[str, Any]:
    """A Lease that is not in the cluster yet."""
    return {
        "apiVersion": resources.LEASES.api_version,
        "kind": resources.LEASES.kind,
        "metadata": {"name": name, "namespace": namespace},
    }


def held(lease: Mapping[str, Any], *, identity: str, duration: float, now: datetime) -> dict[str, Any]:
    """The Lease acquired or renewed by a candidate; everything else about it is kept.

    Args:
        lease: as last read, or ``new``.
        identity: the candidate's.
        duration: seconds; written as whole ones, rounded up.
        now: the calendar.
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
    """The Lease without a holder; free for anybody at once."""
    stamp = micro_time(now)
    free = {"holderIdentity": "", "leaseDurationSeconds": 1, "acquireTime": stamp, "renewTime": stamp}
    return {**lease, "spec": spec_of(lease) | free}

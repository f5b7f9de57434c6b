"""The objects that workers read, derived from the record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from swarm.handover.ledger import Holder, Ledger

KEY = "share.json"
LIMIT = 900_000
"""Bytes of one ConfigMap's share: etcd takes 1.5 MiB, the API server 1 MiB of data."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a share says besides jobs."""

    swarm: str
    handover: str
    refresh: str
    fence_seconds: int = 0
    weights: Mapping[str, int] | None = None
    """Of jobs that do not weigh 1."""


def render(ledger: Ledger, holder: Holder, settings: Settings, *, limit: int = LIMIT) -> list[str]:
    """Return the text of each part of a pod's share; equal records give equal texts."""
    slot = next((slot for slot in ledger.slots.values() if slot.uid == holder.uid), None)
    head: dict[str, Any] = {
        "apiVersion": "swarm.virtual-node.io/v1alpha1",
        "kind": "Share",
        "swarm": settings.swarm,
        "worker": holder.pod,
        "podUID": holder.uid,
        "slot": slot.index if slot else -1,
        "session": holder.session,
        "version": holder.version,
        "handover": settings.handover,
        "refresh": settings.refresh,
        "fenceSeconds": settings.fence_seconds,
        "parts": 1,
    }
    entries = _entries(holder, slot.jobs if slot else [], settings.weights or {})
    parts = list(_split(entries, limit - 1000))
    head["parts"] = len(parts)
    texts = [_text({**head, "jobs": parts[0]})]
    tail = {"version": holder.version, "session": holder.session, "podUID": holder.uid}
    texts += [_text({**tail, "part": index, "jobs": jobs}) for index, jobs in enumerate(parts[1:], 1)]
    return texts


def checksum(text: str) -> str:
    """Return the value of a share's annotation."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _entries(holder: Holder, assigned: list[str], weights: Mapping[str, int]) -> list[dict[str, Any]]:
    started, stopping = set(holder.start), set(holder.stop)
    states = {job: "start" if job in started else "hold" for job in assigned}
    # Jobs that are assigned to another worker: under Overlap they may still run here.
    states |= dict.fromkeys(holder.start, "start") | dict.fromkeys(stopping, "stop")
    return [{"name": name, "weight": weights.get(name, 1), "state": states[name]} for name in sorted(states)]


def _split(entries: list[dict[str, Any]], limit: int) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    size = 0
    for entry in entries:
        length = len(_text(entry).encode()) + 1
        if part and size + length > limit:
            yield part
            part, size = [], 0
        part.append(entry)
        size += length
    yield part


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()

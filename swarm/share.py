"""Renders, from the record, the shares that workers read. A share lists the jobs of one worker. No IO."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml

from swarm.handover import Holder, Ledger, Slot

KEY = "share.json"
LIMIT = 900_000
"""Largest part of a share in bytes, with one ConfigMap per part: the API server accepts 1 MiB of data, etcd 1.5 MiB."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Fields of a share besides its jobs."""

    swarm: str
    handover: str
    refresh: str
    fence_seconds: int = 0
    weights: Mapping[str, int] | None = None
    """Weights of jobs; missing jobs have weight 1."""

    def digest(self) -> str:
        """Return a digest of all fields except ``swarm``."""
        weights = sorted((self.weights or {}).items())
        text = repr((self.handover, self.refresh, self.fence_seconds, weights))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def render(slot: Slot | None, holder: Holder, settings: Settings, *, limit: int = LIMIT) -> list[str]:
    """Return the text of each part of a pod's share; equal records give equal texts. ``slot``: the pod's; None: none."""
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


def original(ledger: Ledger) -> str:
    """Return the table in k8s-swarm's layout: all jobs assigned to each worker, including those that do not run there yet."""
    workloads = {slot.name: {"jobs": slot.jobs, "version": 0} for slot in ledger.slots.values()}
    return yaml.dump(
        {"workloads": workloads, "version": ledger.table},
        Dumper=_IndentedSequences,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=1 << 30,
    )


def original_version(text: str) -> int:
    """Return the version of a table in the layout of k8s-swarm; 0 if it has none."""
    # Not parsed as YAML, because a user can write a text that expands without a limit.
    found = _VERSION.findall(text)
    return int(found[-1]) if found else 0


class _IndentedSequences(yaml.SafeDumper):
    """A YAML dumper that indents sequences under their key, like Go's yaml.v3, and writes no aliases."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: FBT001, FBT002 - PyYAML's signature
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Go's yaml.v3 double-quotes text that YAML 1.1 or 1.2 reads as another type.
    plain = dumper.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
    other = plain != _STRING or text in {"y", "Y", "n", "N"} or _NUMBER.fullmatch(text)
    return dumper.represent_scalar(_STRING, text, style='"' if other else None)


_VERSION = re.compile(r"^version: *(\d{1,15})\r?$", re.ASCII | re.MULTILINE)
_STRING = "tag:yaml.org,2002:str"
_NUMBER = re.compile(r"[-+]?(\.\d+|\d+(\.\d*)?)([eE][-+]?\d+)?|0o[0-7]+")
_IndentedSequences.add_representer(str, _represent)


def checksum(text: str) -> str:
    """Return the value of a share's checksum annotation."""
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _entries(holder: Holder, assigned: list[str], weights: Mapping[str, int]) -> list[dict[str, Any]]:
    started, stopping = set(holder.start), set(holder.stop)
    states = {job: "start" if job in started else "hold" for job in assigned}
    # Includes jobs that are now assigned to another worker: they must stop, or under Overlap still run here.
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

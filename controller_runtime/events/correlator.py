"""Decides to which Event a report (``Happening``) is added and whether the Event is sent. No IO.

Three stages, as in client-go's EventCorrelator (``tools/record/events_cache.go``):

1. *Aggregation*: after ten different messages for the same object, type and reason, each within ten minutes
   of the previous message, further messages share one Event, ``(combined from similar events): …``.
2. *Counting*: a repeated report increases the count of the same Event.
3. *Spam filter* (``Pace``): an object may have 25 Events at once, then one every five minutes.

Each stage remembers the 4,096 latest keys.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from controller_runtime.apimachinery.timestamps import rfc3339
from controller_runtime.objects import Object
from controller_runtime.util.buffers import Recent
from controller_runtime.util.pace import Pace

SIMILAR = 10
SIMILAR_WITHIN = 600.0
MESSAGE_LENGTH = 1024
"""Maximum characters of a note in events.k8s.io; kube-scheduler also cuts its messages to this length."""
COMBINED = "(combined from similar events): "
SPAM_BURST, SPAM_QPS = 25, 1 / 300
"""Events of one object at once, and per second in the long run."""

_CHANGING = ("count", "firstTimestamp", "lastTimestamp", "message", "reason", "series", "type")
_DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_NAME_LENGTH = 253


@dataclass(slots=True, eq=False)
class Series:
    """One Event object over time."""

    body: dict[str, Any]
    """The complete core/v1 Event in its desired state."""
    sent: int | None = None
    """``fingerprint()`` of the server's Event; None if the server may not have the Event."""
    is_mirrored: bool = False
    """True if each report contains the complete Event; ``body`` is then emptied after the Event was written."""

    @property
    def namespace(self) -> str:
        """Return the Event's own namespace."""
        return str(self.body["metadata"]["namespace"])

    @property
    def name(self) -> str:
        """Return the Event's own name."""
        return str(self.body["metadata"]["name"])

    def changing(self) -> dict[str, Any]:
        """Return the fields that differ between occurrences, as a merge patch, without null fields."""
        return {key: self.body[key] for key in _CHANGING if self.body.get(key) is not None}

    def fingerprint(self) -> int:
        """Return a hash of ``changing()``; a hash, because thousands of Events are remembered."""
        return hash(msgspec.json.encode(self.changing()))


@dataclass(frozen=True, slots=True)
class Happening:
    """What a component reports about an object."""

    involved: dict[str, str]
    """An ObjectReference."""
    type: str
    reason: str
    message: str


@dataclass(slots=True)
class _Similar:
    last: float
    messages: set[str] = field(default_factory=set)


def reference_to(involved: Mapping[str, Any] | Object) -> dict[str, str]:
    """Return the ObjectReference of a cached or plain object; an ObjectReference is copied."""
    if isinstance(involved, Object):
        found = {
            "apiVersion": involved.api_version,
            "kind": involved.kind,
            "namespace": involved.namespace,
            "name": involved.name,
            "uid": involved.uid,
            "resourceVersion": involved.resource_version,
        }
    else:
        metadata = involved.get("metadata", involved)
        found = {key: involved.get(key, "") for key in ("apiVersion", "kind", "fieldPath")}
        found |= {key: metadata.get(key, "") for key in ("namespace", "name", "uid", "resourceVersion")}
    return {key: str(value) for key, value in found.items() if value}


class EventCorrelator:
    """Turns reports (``Happening``) into Events of one component.

    Args:
        component: reporting component, such as ``virtual-node``.
        host: reporting instance, such as the node's or pod's name; may be empty.
    """

    def __init__(self, *, component: str, host: str = "") -> None:
        self._component = component
        self._host = host
        self._similar: Recent[tuple[str, ...], _Similar] = Recent()
        self._series: Recent[tuple[str, ...], Series] = Recent()
        self._spam: Pace[tuple[str, ...]] = Pace(burst=SPAM_BURST, qps=SPAM_QPS)
        self._last_stamp = 0

    def correlate(self, what: Happening, *, at: float, now: datetime) -> Series | None:
        """Return the Event to write for a happening; None if the object has had too many.

        The message is cut at 1,024 characters. ``at`` is the same moment as ``now`` in seconds of a monotonic clock.
        """
        involved = what.involved
        subject = tuple(involved.get(key, "") for key in ("kind", "namespace", "name", "uid", "apiVersion"))
        kind = (*subject, what.type, what.reason)
        message = what.message
        key = (*kind, involved.get("fieldPath", ""), message)
        if self._is_one_of_many(kind, message, at):
            message, key = COMBINED + message, kind
        if len(message) > MESSAGE_LENGTH:
            message = message[: MESSAGE_LENGTH - 4] + " ..."
        series = self._series.touch(key)
        if series is None:
            series = self._series[key] = Series(self._event(what, now))
        else:
            series.body["count"] += 1
            series.body["lastTimestamp"] = rfc3339(now)
        series.body["message"] = message
        return None if self._spam.wait(subject, now=at) else series

    def _is_one_of_many(self, kind: tuple[str, ...], message: str, at: float) -> bool:
        similar = self._similar.touch(kind)
        if similar is None or at - similar.last > SIMILAR_WITHIN:
            similar = self._similar[kind] = _Similar(at)
        similar.last = at
        if message in similar.messages:
            return False
        if len(similar.messages) >= SIMILAR:
            return True
        similar.messages.add(message)
        return False

    def _event(self, what: Happening, now: datetime) -> dict[str, Any]:
        involved = what.involved
        metadata = {
            "name": self._name(involved.get("name", ""), now),
            "namespace": involved.get("namespace") or "default",
        }
        source = {"component": self._component}
        if self._host:
            source["host"] = self._host
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": metadata,
            "involvedObject": involved,
            "type": what.type,
            "reason": what.reason,
            "message": what.message,
            "source": source,
            "firstTimestamp": rfc3339(now),
            "lastTimestamp": rfc3339(now),
            "count": 1,
            "reportingComponent": self._component,
            "reportingInstance": self._host,
        }

    def _name(self, involved: str, now: datetime) -> str:
        """Return a unique ``<object>.<nanoseconds in hex>``; if that is no valid name, with a UUID as object."""
        stamp = int(now.timestamp()) * 10**9 + now.microsecond * 1000
        self._last_stamp = stamp = max(stamp, self._last_stamp + 1)
        name = f"{involved}.{stamp:x}"
        if len(name) > _NAME_LENGTH or not _DNS_SUBDOMAIN.fullmatch(name):
            return f"{uuid.uuid4()}.{stamp:x}"
        return name

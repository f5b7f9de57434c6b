"""The object that informers cache: metadata decoded, everything else kept as JSON until somebody reads it.

A cache of plain dicts costs five times the memory and makes every full garbage collection a pause of a tenth
of a second per 5,000 pods, because each nested dict and list is tracked. Bytes are not. Decoding on read costs
about ten microseconds a pod and has a second virtue: every reader gets dicts of its own, so nothing in a cache
can be changed by accident and nobody has to copy defensively.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec

_EMPTY: Any = {}


class ObjectMeta(msgspec.Struct, rename="camel", omit_defaults=True, gc=False):
    """``metadata`` of an object, without managedFields and selfLink, which nothing here needs."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    owner_references: list[dict[str, Any]] = []
    finalizers: list[str] = []


class Object:
    """One object as a server sent it. Never changes; a newer state is another Object.

    Attributes:
        metadata: the decoded metadata; treat it as read-only.
        api_version: such as ``v1`` or ``apps/v1``.
        kind: such as ``Pod``.
    """

    __slots__ = ("_fields", "api_version", "kind", "metadata")

    def __init__(
        self, metadata: ObjectMeta, fields: dict[str, msgspec.Raw], *, api_version: str, kind: str
    ) -> None:
        self.metadata = metadata
        self._fields = fields
        self.api_version = sys.intern(api_version)
        self.kind = sys.intern(kind)

    @property
    def key(self) -> str:
        """``namespace/name``, or ``name`` of a cluster-scoped object: the cache key, as in client-go."""
        metadata = self.metadata
        return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name

    @property
    def name(self) -> str:
        """``metadata.name``."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """``metadata.namespace``; empty for cluster-scoped objects."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """``metadata.uid``."""
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        """``metadata.resourceVersion``; opaque."""
        return self.metadata.resource_version

    @property
    def labels(self) -> dict[str, str]:
        """``metadata.labels``; read-only."""
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        """``metadata.annotations``; read-only."""
        return self.metadata.annotations

    @property
    def spec(self) -> Any:
        """``spec``, decoded afresh: bind it to a local before reading it twice. None when absent."""
        return self.field("spec")

    @property
    def status(self) -> Any:
        """``status``, decoded afresh. None when absent."""
        return self.field("status")

    def field(self, name: str) -> Any:
        """Any top-level field but metadata, decoded afresh. None when absent."""
        raw = self._fields.get(name)
        return None if raw is None else msgspec.json.decode(raw)

    def has_spec_equal(self, other: Object) -> bool:
        """Whether both specs are the same JSON; compares bytes, decodes nothing."""
        return self._same("spec", other)

    def has_status_equal(self, other: Object) -> bool:
        """Whether both statuses are the same JSON."""
        return self._same("status", other)

    def to_dict(self) -> dict[str, Any]:
        """The whole object as a fresh plain dict."""
        whole: dict[str, Any] = {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "metadata": msgspec.to_builtins(self.metadata),
        }
        for name, raw in self._fields.items():
            whole[name] = msgspec.json.decode(raw)
        return whole

    def without(self, *fields: str) -> Object:
        """The same object less some top-level fields: for informer transforms that save memory."""
        kept = {name: raw for name, raw in self._fields.items() if name not in fields}
        return Object(self.metadata, kept, api_version=self.api_version, kind=self.kind)

    def with_fields(self, **fields: Any) -> Object:
        """The same object with some top-level fields replaced: for informer transforms."""
        replaced = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in fields.items()}
        return Object(
            self.metadata, {**self._fields, **replaced}, api_version=self.api_version, kind=self.kind
        )

    def _same(self, name: str, other: Object) -> bool:
        mine, theirs = self._fields.get(name), other._fields.get(name)
        if mine is theirs:
            return True
        return mine is not None and theirs is not None and bytes(mine) == bytes(theirs)

    def __repr__(self) -> str:
        return f"<{self.kind or 'Object'} {self.key} uid={self.uid} rv={self.resource_version}>"


class ListMeta(
    msgspec.Struct,
    rename={
        "continue_": "continue",
        "resource_version": "resourceVersion",
        "remaining": "remainingItemCount",
    },
):
    """``metadata`` of a list."""

    resource_version: str = ""
    continue_: str = ""
    remaining: int | None = None


class WatchEvent(msgspec.Struct, frozen=True):
    """One line of a watch. A BOOKMARK's object has nothing but a resourceVersion and annotations."""

    type: str
    object: Object


class _ListWire(msgspec.Struct):
    items: list[dict[str, msgspec.Raw]] | None = None
    metadata: ListMeta = msgspec.field(default_factory=ListMeta)
    kind: str = ""
    apiVersion: str = ""  # noqa: N815 - the wire's name


class _EventWire(msgspec.Struct):
    type: str
    object: msgspec.Raw


_decode_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_meta = msgspec.json.Decoder(ObjectMeta).decode
_decode_string = msgspec.json.Decoder(str).decode
_decode_list = msgspec.json.Decoder(_ListWire).decode
_decode_event = msgspec.json.Decoder(_EventWire).decode


def decode_object(raw: bytes | msgspec.Raw, *, api_version: str = "", kind: str = "") -> Object:
    """Read one object.

    Args:
        raw: its JSON.
        api_version: used where the JSON has none (items of a list have none).
        kind: likewise.

    Raises:
        msgspec.DecodeError: not JSON, or not an object with metadata.
    """
    return _build(_decode_fields(raw), api_version=api_version, kind=kind)


def from_dict(whole: dict[str, Any]) -> Object:
    """An Object of a plain dict, such as a write's answer."""
    return decode_object(msgspec.json.encode(whole))


def decode_list(raw: bytes) -> tuple[list[Object], ListMeta]:
    """Read a list; its items get the apiVersion and kind that servers leave out there."""
    wire = _decode_list(raw)
    kind = wire.kind.removesuffix("List")
    items = [_build(fields, api_version=wire.apiVersion, kind=kind) for fields in wire.items or ()]
    return items, wire.metadata


def decode_watch_event(line: bytes) -> tuple[str, Object | dict[str, Any]]:
    """Read one line of a watch: its type and its object, or for type ERROR the Status as a dict."""
    wire = _decode_event(line)
    if wire.type == "ERROR":
        return wire.type, msgspec.json.decode(wire.object)
    return wire.type, _build(_decode_fields(wire.object), api_version="", kind="")


def _build(fields: dict[str, msgspec.Raw], *, api_version: str, kind: str) -> Object:
    metadata = _decode_meta(fields.pop("metadata"))
    raw_version, raw_kind = fields.pop("apiVersion", None), fields.pop("kind", None)
    if raw_version is not None:
        api_version = _decode_string(raw_version)
    if raw_kind is not None:
        kind = _decode_string(raw_kind)
    # A Raw is a view that keeps the whole line or list alive; a copy keeps only itself.
    for name, raw in fields.items():
        fields[name] = raw.copy()
    return Object(metadata, fields, api_version=api_version, kind=kind)

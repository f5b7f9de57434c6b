"""The object that informers cache: metadata decoded, everything else kept as JSON until somebody reads it.

A cache of plain dicts costs five times the memory and makes every full garbage collection a pause of a tenth
of a second per 5,000 pods, because each nested dict and list is tracked. Bytes are not. Decoding on read costs
about ten microseconds a pod and has a second virtue: every reader gets dicts of its own, so nothing in a cache
can be changed by accident and nobody has to copy defensively.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from controller_runtime.api.decoding import decode, decoder

_NOTHING = msgspec.Raw()


class ObjectMeta(msgspec.Struct, rename="camel", omit_defaults=True, gc=False, eq=False):
    """``metadata`` of an object, without managedFields and selfLink, which nothing here needs.

    Read-only by contract: informers hand the same one to everybody.
    """

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
    finalizers: tuple[str, ...] = ()
    raw_owner_references: msgspec.Raw = msgspec.field(default=_NOTHING, name="ownerReferences")
    """As JSON; read ``owner_references``."""

    @property
    def owner_references(self) -> list[dict[str, Any]]:
        """The owners, decoded afresh."""
        if not bytes(self.raw_owner_references):
            return []
        owners: list[dict[str, Any]] = decode(self.raw_owner_references)
        return owners


class Object(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One object as a server sent it. Never changes; a newer state is another Object.

    Compared by identity; for contents there are ``has_spec_equal`` and ``has_status_equal``. Made by
    ``decode_object`` and ``from_dict``, and by ``wire`` of what servers send.

    Attributes:
        metadata: the decoded metadata; treat it as read-only.
        api_version: such as ``v1`` or ``apps/v1``.
        kind: such as ``Pod``.
    """

    metadata: ObjectMeta
    api_version: str
    kind: str
    _spec: bytes | None = None
    _status: bytes | None = None
    _others: Mapping[str, bytes] | None = None

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
        return None if self._spec is None else decode(self._spec)

    @property
    def status(self) -> Any:
        """``status``, decoded afresh. None when absent."""
        return None if self._status is None else decode(self._status)

    def field(self, name: str) -> Any:
        """Any top-level field but metadata, decoded afresh. None when absent."""
        raw = self._raw_fields().get(name)
        return None if raw is None else decode(raw)

    @property
    def size(self) -> int:
        """Bytes of the object as JSON, metadata included."""
        return len(msgspec.json.encode(self.metadata)) + sum(map(len, self._raw_fields().values()))

    def has_spec_equal(self, other: Object) -> bool:
        """Whether both specs are the same JSON; compares bytes, decodes nothing."""
        return self._spec == other._spec

    def has_status_equal(self, other: Object) -> bool:
        """Whether both statuses are the same JSON."""
        return self._status == other._status

    def to_dict(self) -> dict[str, Any]:
        """The whole object as a fresh plain dict: apiVersion, kind, metadata, spec, status, the rest.

        Fields of the metadata that are empty, zero or null are left out, as servers do.
        """
        whole: dict[str, Any] = {"apiVersion": self.api_version} if self.api_version else {}
        if self.kind:
            whole["kind"] = self.kind
        whole["metadata"] = msgspec.json.decode(msgspec.json.encode(self.metadata))
        for name, raw in self._raw_fields().items():
            whole[name] = decode(raw)
        return whole

    def without(self, *fields: str) -> Object:
        """The same object less some top-level fields: for informer transforms that save memory."""
        return self._with({name: raw for name, raw in self._raw_fields().items() if name not in fields})

    def with_fields(self, **fields: Any) -> Object:
        """The same object with some top-level fields replaced: for informer transforms."""
        replaced = {name: msgspec.json.encode(value) for name, value in fields.items()}
        return self._with({**self._raw_fields(), **replaced})

    def _raw_fields(self) -> dict[str, bytes]:
        fields: dict[str, bytes] = {}
        if self._spec is not None:
            fields["spec"] = self._spec
        if self._status is not None:
            fields["status"] = self._status
        if self._others:
            fields |= self._others
        return fields

    def _with(self, fields: dict[str, bytes]) -> Object:
        spec, status = fields.pop("spec", None), fields.pop("status", None)
        return Object(self.metadata, self.api_version, self.kind, spec, status, fields or None)

    def __repr__(self) -> str:
        return f"<{self.kind or 'Object'} {self.key} uid={self.uid} rv={self.resource_version}>"


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK.

    A BOOKMARK's object has nothing but a resourceVersion and annotations.
    """

    type: str
    object: Object


Fields = dict[str, msgspec.Raw]
"""Top-level fields by name; views of a larger text."""


_decode_fields = decoder(Fields)
_decode_meta = decoder(ObjectMeta)
_decode_string = decoder(str)


def decode_object(raw: bytes | msgspec.Raw, *, api_version: str = "", kind: str = "") -> Object:
    """Read one object.

    Args:
        raw: its JSON.
        api_version: used where the JSON has none (items of a list have none).
        kind: likewise.

    Raises:
        msgspec.DecodeError: not JSON, or not an object with metadata.
    """
    return assemble(_decode_fields(raw), api_version=api_version, kind=kind)


def from_dict(whole: Mapping[str, Any]) -> Object:
    """An Object of a plain dict, such as a write's answer.

    Raises:
        msgspec.DecodeError: it has no metadata, or metadata of wrong types.
    """
    return decode_object(msgspec.json.encode(whole))


def assemble(fields: Fields, *, api_version: str = "", kind: str = "") -> Object:
    """The Object of its top-level fields, which are taken out of the dict.

    Raises:
        msgspec.DecodeError: no metadata, or metadata of wrong types.
    """
    raw_metadata = fields.pop("metadata", None)
    if raw_metadata is None:
        raise msgspec.ValidationError("an object without metadata")
    metadata = _metadata(raw_metadata)
    raw_version, raw_kind = fields.pop("apiVersion", None), fields.pop("kind", None)
    # A few kinds and namespaces, thousands of objects: one string each.
    metadata.namespace = sys.intern(metadata.namespace)
    api_version = sys.intern(_decode_string(raw_version) if raw_version is not None else api_version)
    kind = sys.intern(_decode_string(raw_kind) if raw_kind is not None else kind)
    # A Raw is a view that keeps the whole line or list alive; bytes of its own keep only themselves.
    spec, status = fields.pop("spec", None), fields.pop("status", None)
    return Object(
        metadata,
        api_version,
        kind,
        None if spec is None else bytes(spec),
        None if status is None else bytes(status),
        {name: bytes(raw) for name, raw in fields.items()} if fields else None,
    )


def _metadata(raw: msgspec.Raw) -> ObjectMeta:
    try:
        metadata = _decode_meta(raw)
    except msgspec.ValidationError:
        # Some writers spell "nothing" as null, which a strict schema refuses.
        plain = decode(raw)
        if not isinstance(plain, dict):
            raise
        kept = {name: value for name, value in plain.items() if value is not None}
        metadata = _decode_meta(msgspec.json.encode(kept))
    if metadata.raw_owner_references is not _NOTHING:
        metadata.raw_owner_references = metadata.raw_owner_references.copy()
    return metadata

"""The object that informers cache: metadata is decoded, other fields stay JSON until they are read.

A cache of plain dicts takes five times the memory. It also makes every full garbage collection pause for a
tenth of a second per 5,000 pods, because the collector tracks each nested dict and list, but not bytes.
Decoding on read takes about ten microseconds per pod and returns new dicts to every reader, so a cache cannot
be changed by accident and no defensive copies are needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import msgspec

from controller_runtime.apimachinery.decoding import decode, decoder
from controller_runtime.packing import Models, Shared, Text, are_equal, length, plain

_NOTHING = msgspec.Raw()
_OBJECT_BYTES, _ENTRY_BYTES = 800, 140
"""Bytes of an object without content, with its place in a cache, and of a label without its text."""
_IDENTITY = 250
"""Characters of an object's names and versions that are part of ``_OBJECT_BYTES``."""
_LARGEST_FALLBACK = 64 * 1024
"""Bytes of metadata that are decoded again without its empty fields."""
_Short = Annotated[str, msgspec.Meta(max_length=1024)]
"""A name, a uid and similar fields, which are keys of indexes and parts of log lines. API servers allow 253 characters."""
_Time = Annotated[str, msgspec.Meta(max_length=64)]


class ObjectMeta(msgspec.Struct, rename="camel", omit_defaults=True, gc=False, eq=False):
    """``metadata`` of an object, without managedFields and selfLink, which are not used.

    Do not change it, because informers share it with all readers.
    """

    name: _Short = ""
    generate_name: _Short = ""
    namespace: _Short = ""
    uid: _Short = ""
    resource_version: _Short = ""
    generation: int = 0
    creation_timestamp: _Time | None = None
    deletion_timestamp: _Time | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    raw_owner_references: msgspec.Raw = msgspec.field(default=_NOTHING, name="ownerReferences")
    """The owners as JSON; use ``owner_references`` to read them."""

    @property
    def owner_references(self) -> list[dict[str, Any]]:
        """Return the owners, decoded at each call."""
        if not bytes(self.raw_owner_references):
            return []
        owners: list[dict[str, Any]] = decode(self.raw_owner_references)
        return owners


class Object(msgspec.Struct, frozen=True, eq=False, gc=False):
    """One object as a server sent it. Immutable; a newer state of the object is a new ``Object``.

    Compared by identity; use ``has_spec_equal`` and ``has_status_equal`` for contents. Created by
    ``decode_object``, ``from_dict``, and ``client.collection`` for server responses.

    Attributes:
        metadata: the decoded metadata; treat it as read-only.
        api_version: such as ``v1`` or ``apps/v1``.
        kind: such as ``Pod``.
    """

    metadata: ObjectMeta
    api_version: str
    kind: str
    _spec: Text | None = None
    _status: Text | None = None
    _others: Mapping[str, bytes] | None = None

    @property
    def key(self) -> str:
        """Return ``namespace/name``, or ``name`` for a cluster-scoped object: the cache key, as in client-go."""
        metadata = self.metadata
        return f"{metadata.namespace}/{metadata.name}" if metadata.namespace else metadata.name

    @property
    def name(self) -> str:
        """Return ``metadata.name``."""
        return self.metadata.name

    @property
    def namespace(self) -> str:
        """Return ``metadata.namespace``; empty for cluster-scoped objects."""
        return self.metadata.namespace

    @property
    def uid(self) -> str:
        """Return ``metadata.uid``."""
        return self.metadata.uid

    @property
    def resource_version(self) -> str:
        """Return ``metadata.resourceVersion``."""
        return self.metadata.resource_version

    @property
    def labels(self) -> dict[str, str]:
        """Return ``metadata.labels``; read-only."""
        return self.metadata.labels

    @property
    def annotations(self) -> dict[str, str]:
        """Return ``metadata.annotations``; read-only."""
        return self.metadata.annotations

    @property
    def controller(self) -> dict[str, Any] | None:
        """Return the owner that replaces a deleted object, decoded at each call; None: there is none.

        An owner without ``controller: true`` does not replace it; it matters only for garbage collection.
        """
        return next((owner for owner in self.metadata.owner_references if owner.get("controller")), None)

    @property
    def spec(self) -> Any:
        """Return ``spec``, None if absent. It is decoded at each call, so store it to read it twice."""
        return None if self._spec is None else decode(plain(self._spec))

    @property
    def node_name(self) -> str:
        """Return ``spec.nodeName``, the node of a pod, and decode nothing else. Empty: it has none, or not a text."""
        if self._spec is None:
            return ""
        try:
            name = _decode_binding(plain(self._spec)).node_name
        except msgspec.DecodeError:
            return ""
        return name if isinstance(name, str) else ""

    @property
    def status(self) -> Any:
        """Return ``status``, decoded at each call; None if absent."""
        return None if self._status is None else decode(plain(self._status))

    @property
    def spec_size(self) -> int:
        """Return the length of ``spec`` as JSON; 0 if absent."""
        return 0 if self._spec is None else length(self._spec)

    def field_keys(self, name: str) -> frozenset[str]:
        """Return the keys of a top-level field that is an object, without decoding its values. Empty if absent."""
        raw = self._raw_field(name)
        return frozenset() if raw is None or raw == b"null" else frozenset(_decode_fields(raw))

    def field(self, name: str) -> Any:
        """Return a top-level field other than metadata, decoded at each call. None if absent."""
        raw = self._raw_field(name)
        return None if raw is None else decode(raw)

    def field_size(self, name: str) -> int:
        """Return the length of a top-level field as JSON in bytes; 0 if absent."""
        return len(self._raw_field(name) or b"")

    @property
    def size(self) -> int:
        """Return the approximate length of the object as JSON in bytes, including metadata."""
        texts = [text for text in (self._spec, self._status) if text is not None]
        others = (self._others or {}).values()
        return len(msgspec.json.encode(self.metadata)) + sum(map(length, texts)) + sum(map(len, others))

    @property
    def memory(self) -> int:
        """Return the approximate bytes that the object occupies in a cache; takes about two microseconds.

        Every part counts that a server can repeat or make long, because a hostile server chooses where it puts its bytes.
        """
        metadata = self.metadata
        total = _OBJECT_BYTES + len(bytes(metadata.raw_owner_references))
        identity = (
            len(metadata.name) + len(metadata.namespace) + len(metadata.uid) + len(metadata.generate_name)
        )
        identity += len(metadata.resource_version) + len(self.api_version) + len(self.kind)
        if identity > _IDENTITY:
            total += 4 * identity
        total += texts_memory(metadata.labels) + texts_memory(metadata.annotations)
        for finalizer in metadata.finalizers:
            total += _ENTRY_BYTES + 4 * len(finalizer)
        if self._spec is not None:
            total += length(self._spec)
        if self._status is not None:
            total += length(self._status)
        if self._others:
            for name, raw in self._others.items():
                total += _ENTRY_BYTES + 4 * len(name) + len(raw)
        return total

    def has_spec_equal(self, other: Object) -> bool:
        """Report whether both specs are the same JSON; compares bytes without decoding."""
        return are_equal(self._spec, other._spec)

    def has_status_equal(self, other: Object) -> bool:
        """Report whether both statuses are the same JSON."""
        return are_equal(self._status, other._status)

    def to_dict(self) -> dict[str, Any]:
        """Return the object as a new plain dict: apiVersion, kind, metadata, spec, status, the rest.

        Only the fields of ``ObjectMeta`` are in the metadata; empty, zero or null ones are omitted, as by servers.
        """
        whole: dict[str, Any] = {"apiVersion": self.api_version} if self.api_version else {}
        if self.kind:
            whole["kind"] = self.kind
        whole["metadata"] = decode(msgspec.json.encode(self.metadata))
        for name, raw in self._raw_fields().items():
            whole[name] = decode(raw)
        return whole

    def to_json(self) -> bytes:
        """Return the object as JSON, with the fields of ``to_dict``."""
        encode = msgspec.json.encode
        fields = {"apiVersion": encode(self.api_version)} if self.api_version else {}
        if self.kind:
            fields["kind"] = encode(self.kind)
        fields["metadata"] = encode(self.metadata)
        fields |= self._raw_fields()
        return b"{%s}" % b",".join([b"%s:%s" % (encode(name), raw) for name, raw in fields.items()])

    def packed(self, models: Models, before: Object | None = None) -> Object:
        """Return the object in less memory, for caches with many similar objects.

        Args:
            models: of the cache.
            before: the object that it replaces; None: there is none.
        """
        _share(self.metadata)
        owner = self.metadata.generate_name or self.name.rpartition("-")[0]
        earlier: Object = before or self
        spec = models.pack((self.namespace, owner, "spec"), self._spec, earlier._spec)
        status = models.pack((self.namespace, owner, "status"), self._status, earlier._status)
        return Object(self.metadata, self.api_version, self.kind, spec, status, self._others)

    def without(self, *fields: str) -> Object:
        """Return the object without some top-level fields, for informer transforms that save memory."""
        return self._with({name: raw for name, raw in self._raw_fields().items() if name not in fields})

    def with_fields(self, **fields: Any) -> Object:
        """Return the object with some top-level fields replaced, for informer transforms."""
        replaced = {name: msgspec.json.encode(value) for name, value in fields.items()}
        return self._with({**self._raw_fields(), **replaced})

    def without_metadata(self, *fields: str) -> Object:
        """Return the object without some fields of its metadata, such as ``annotations``, for informer transforms."""
        empty = ObjectMeta()
        metadata = msgspec.structs.replace(self.metadata, **{name: getattr(empty, name) for name in fields})
        return msgspec.structs.replace(self, metadata=metadata)

    def with_labels(self, labels: dict[str, str]) -> Object:
        """Return the object with other labels, for informer transforms."""
        metadata = msgspec.structs.replace(self.metadata, labels=labels)
        return msgspec.structs.replace(self, metadata=metadata)

    def with_only(
        self,
        *,
        labels: Callable[[str], bool] | None = None,
        annotations: Callable[[str], bool] | None = None,
        owners: Callable[[Mapping[str, Any]], bool] | None = None,
    ) -> Object:
        """Return the object with less metadata, for informer transforms. Finalizers are dropped.

        Args:
            labels: reports whether a label key is kept; None: none is.
            annotations: as for ``labels``.
            owners: reports whether an owner reference is kept; None: none is.
        """
        metadata = self.metadata
        kept = (
            [reference for reference in metadata.owner_references if owners(reference)]
            if owners is not None
            else []
        )
        reduced = msgspec.structs.replace(
            metadata,
            labels=_chosen(metadata.labels, labels),
            annotations=_chosen(metadata.annotations, annotations),
            finalizers=(),
            raw_owner_references=msgspec.Raw(msgspec.json.encode(kept)) if kept else _NOTHING,
        )
        return msgspec.structs.replace(self, metadata=reduced)

    def _raw_field(self, name: str) -> bytes | None:
        if name in {"spec", "status"}:
            text = self._spec if name == "spec" else self._status
            return None if text is None else plain(text)
        return (self._others or {}).get(name)

    def _raw_fields(self) -> dict[str, bytes]:
        fields: dict[str, bytes] = {}  # Not a comprehension: transforms call this for each object.
        if self._spec is not None:
            fields["spec"] = plain(self._spec)
        if self._status is not None:
            fields["status"] = plain(self._status)
        if self._others:
            fields.update(self._others)
        return fields

    def _with(self, fields: dict[str, bytes]) -> Object:
        spec, status = fields.pop("spec", None), fields.pop("status", None)
        return Object(self.metadata, self.api_version, self.kind, spec, status, fields or None)

    def __repr__(self) -> str:
        return f"<{self.kind or 'Object'} {self.key} uid={self.uid} rv={self.resource_version}>"


def texts_memory(texts: Mapping[str, str]) -> int:
    """Return the approximate bytes that labels or annotations occupy."""
    total = 0
    for key, value in texts.items():
        text = len(key) + len(value)
        # Python stores all characters of a string with the width of the widest.
        total += _ENTRY_BYTES + (text if key.isascii() and value.isascii() else 4 * text)
    return total


def _chosen(texts: dict[str, str], keeps: Callable[[str], bool] | None) -> dict[str, str]:
    return {} if keeps is None else {key: value for key, value in texts.items() if keeps(key)}


class WatchEvent(msgspec.Struct, frozen=True, gc=False):
    """One line of a watch: ADDED, MODIFIED, DELETED or BOOKMARK.

    A BOOKMARK's object has only a resourceVersion and annotations.
    """

    type: str
    object: Object


Fields = dict[str, msgspec.Raw]
"""JSON of top-level fields by name; views of a larger text, which they keep in memory."""


class _Binding(msgspec.Struct, rename="camel", gc=False):
    """The part of a pod's spec that names its node."""

    node_name: Any = None


_TEXTS: Shared[str] = Shared()
_OWNERS: Shared[msgspec.Raw] = Shared()
_decode_binding = decoder(_Binding)
_decode_fields = decoder(Fields)
_decode_meta = decoder(ObjectMeta)
_decode_string: Callable[[msgspec.Raw], str] = decoder(_Short)


def decode_object(raw: bytes | msgspec.Raw) -> Object:
    """Return the Object in a JSON text.

    Raises:
        msgspec.DecodeError: not JSON, or not an object with metadata.
    """
    return assemble(_decode_fields(raw))


def from_dict(whole: Mapping[str, Any]) -> Object:
    """Return the Object of a plain dict, such as a write's answer.

    Raises:
        msgspec.DecodeError: the dict has no metadata, or metadata of wrong types.
    """
    return decode_object(msgspec.json.encode(whole))


def assemble(fields: Fields, *, api_version: str = "", kind: str = "") -> Object:
    """Return the Object with these top-level fields; the dict is changed.

    Raises:
        msgspec.DecodeError: no metadata, or metadata of wrong types or with too long names.
    """
    raw_metadata = fields.pop("metadata", None)
    if raw_metadata is None:
        raise msgspec.ValidationError("an object without metadata")
    metadata = _metadata(raw_metadata)
    raw_version, raw_kind = fields.pop("apiVersion", None), fields.pop("kind", None)
    # Interned, because thousands of objects have few kinds and namespaces.
    metadata.namespace = sys.intern(metadata.namespace)
    api_version = sys.intern(_decode_string(raw_version) if raw_version is not None else api_version)
    kind = sys.intern(_decode_string(raw_kind) if raw_kind is not None else kind)
    # A Raw would keep the complete line or list in memory, so its bytes are copied.
    spec, status = fields.pop("spec", None), fields.pop("status", None)
    return Object(
        metadata,
        api_version,
        kind,
        None if spec is None else bytes(spec),
        None if status is None else bytes(status),
        {name: bytes(raw) for name, raw in fields.items()} if fields else None,
    )


def _share(metadata: ObjectMeta) -> None:
    """Replace values by equal ones of other objects, so that they take less memory."""
    for texts in (metadata.labels, metadata.annotations):
        for key, text in texts.items():
            texts[key] = _TEXTS.get(text, text)
    # Also names and uids: those of an object are labels of its copies.
    metadata.name = _TEXTS.get(metadata.name, metadata.name)
    metadata.uid = _TEXTS.get(metadata.uid, metadata.uid)
    metadata.generate_name = _TEXTS.get(metadata.generate_name, metadata.generate_name)
    if time := metadata.creation_timestamp:
        metadata.creation_timestamp = _TEXTS.get(time, time)
    if owners := bytes(metadata.raw_owner_references):
        metadata.raw_owner_references = _OWNERS.get(owners, metadata.raw_owner_references)


def _metadata(raw: msgspec.Raw) -> ObjectMeta:
    try:
        metadata = _decode_meta(raw)
    except msgspec.ValidationError:
        # Some writers send null for empty fields, which the schema refuses, so these fields are removed. They write small
        # objects, and decoding the metadata of a hostile server three times would take half a second.
        if len(raw) > _LARGEST_FALLBACK:
            raise
        plain = decode(raw)
        if not isinstance(plain, dict):
            raise
        kept = {name: value for name, value in plain.items() if value is not None}
        metadata = _decode_meta(msgspec.json.encode(kept))
    if metadata.raw_owner_references is not _NOTHING:
        metadata.raw_owner_references = metadata.raw_owner_references.copy()
    return metadata

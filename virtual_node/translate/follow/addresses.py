"""The addresses in the status of copies, which are reported in the status of the upper object.

Several lower clusters write to the status of one upper object. An annotation of each copy records the addresses that were
added for its cluster, and only these are removed again. Users of the lower cluster can write the annotation, so it has a
keyed hash.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from clusterset.model import names
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.apimachinery.keyed_hash import is_authentic, keyed_hash

KEY_OBJECT = "virtual-node-key"
"""Name of the Secret with the key of the hashes, in virtual-node's own namespace of the upper cluster."""
_PURPOSE = "addresses of a copy"
_MAX_ADDRESSES = 50
"""Maximum per lower cluster."""


class _Record(msgspec.Struct):
    addresses: list[dict[str, str]]
    hash: str


_decode = decoder(_Record)


@dataclass(frozen=True, slots=True)
class AddressField:
    """Where the status of a kind has its addresses."""

    path: tuple[str, ...]
    """Field names below ``status``; the value is a list."""
    entry: Callable[[Mapping[str, Any]], dict[str, str]]
    """Returns the part of an entry that is reported; empty: the entry is not an address."""
    most: int
    """Maximum length of the list."""

    def present(self, body: Mapping[str, Any]) -> list[Any]:
        """Return the list in an object; empty: there is none."""
        value: Any = body.get("status")
        for field in self.path:
            value = (value or {}).get(field)
        return value or []

    def read(self, body: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the addresses in a copy's first 50 entries, without duplicates."""
        found: list[dict[str, str]] = []
        for one in self.present(body)[:_MAX_ADDRESSES]:
            if isinstance(one, Mapping) and (address := self.entry(one)) and address not in found:
                found.append(address)
        return found

    def merged(
        self, upper: Mapping[str, Any], current: Iterable[dict[str, str]], earlier: Iterable[dict[str, str]]
    ) -> list[Any]:
        """Return the upper list, updated with the addresses of one lower cluster.

        Args:
            upper: the upper object. Addresses that others wrote are kept.
            current: the addresses in the lower cluster.
            earlier: addresses that this lower cluster reported before; removed unless they are current.
        """
        current = list(current)
        stale = [entry for entry in earlier if entry not in current]
        kept = [entry for entry in self.present(upper) if entry not in stale]
        return (kept + [entry for entry in current if entry not in kept])[: self.most]

    def patch(self, entries: list[Any]) -> dict[str, Any]:
        """Return a merge patch that sets the list."""
        value: Any = entries
        for field in reversed(("status", *self.path)):
            value = {field: value}
        return dict(value)


@dataclass(frozen=True, slots=True)
class Recorder:
    """Writes and reads the record on the copy of one upper object in one lower cluster."""

    key: bytes
    """Key of the hash, which users and programs of the lower cluster cannot read."""
    cluster: str
    """Name of the lower cluster."""
    uid: str
    """Uid of the upper object."""

    def write(self, entries: Iterable[Mapping[str, str]]) -> str:
        """Return the value of the annotation that ``read`` reads."""
        addresses = [dict(entry) for entry in entries]
        record = {"addresses": addresses, "hash": keyed_hash(self.key, _PURPOSE, self._content(addresses))}
        return json.dumps(record, sort_keys=True, separators=(",", ":"))

    def read(self, copy: Mapping[str, Any]) -> list[dict[str, str]]:
        """Return the addresses that may have been added for this cluster; empty: the record is missing or not valid."""
        text = (copy["metadata"].get("annotations") or {}).get(names.ANNOTATION_REPORTED, "")
        try:
            record = _decode(text)
        except msgspec.DecodeError:
            return []
        content = self._content(record.addresses)
        return record.addresses if is_authentic(self.key, _PURPOSE, content, record.hash) else []

    def _content(self, addresses: list[dict[str, str]]) -> dict[str, Any]:
        return {"cluster": self.cluster, "uid": self.uid, "addresses": addresses}

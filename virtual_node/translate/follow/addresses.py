"""The addresses in the status of copies, which are reported in the status of the upper object.

Several lower clusters write to the status of one upper object. An annotation of each copy records the addresses that its
cluster wrote. A cluster removes only these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controller_runtime.api import names
from controller_runtime.api.decoding import decode

_MAX_ADDRESSES = 50
"""Maximum per lower cluster."""


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


def reported(copy: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the addresses that this lower cluster may have written to the upper status."""
    try:
        found = decode((copy["metadata"].get("annotations") or {}).get(names.ANNOTATION_REPORTED, "[]"))
    except ValueError:
        return []
    entries = found if isinstance(found, list) else []
    return [entry for entry in entries[: 2 * _MAX_ADDRESSES] if isinstance(entry, dict)]


def report(entries: Iterable[Mapping[str, str]]) -> str:
    """Return the value of the annotation that ``reported`` reads."""
    return json.dumps(list(entries), sort_keys=True, separators=(",", ":"))

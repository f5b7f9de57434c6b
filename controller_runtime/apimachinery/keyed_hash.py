"""Keyed hashes (HMAC-SHA256): prove that stored data was written by this installation. No IO.

Tenants can write labels, annotations, names and whole objects in their namespaces, so these prove nothing. A
hash proves its author if the key is in a Secret that tenants cannot read
(``controller_runtime.auth.secret_key``).

The content must identify its object, for instance by namespace and uid. Otherwise a tenant could copy valid
content and its hash to another object.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import msgspec

KEY_BYTES = 32


def keyed_hash(key: bytes, purpose: str, content: Any) -> str:
    """Return the hash of JSON-like content as 64 hexadecimal digits; the order of dict keys does not matter.

    Args:
        key: ``KEY_BYTES`` random bytes.
        purpose: what the hash is for. A hash for one purpose is not valid for another.
        content: plain dicts, lists, strings, integers, booleans and None.
    """
    text = msgspec.json.encode([purpose, content], order="sorted")
    return hmac.new(key, text, hashlib.sha256).hexdigest()


def is_authentic(key: bytes, purpose: str, content: Any, found: str) -> bool:
    """Return whether ``found`` is the hash of this content; takes the same time for every wrong hash."""
    return hmac.compare_digest(keyed_hash(key, purpose, content).encode(), found.encode())

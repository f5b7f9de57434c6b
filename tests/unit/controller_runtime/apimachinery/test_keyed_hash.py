"""A keyed hash is valid for one key, one purpose and one content."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.apimachinery.keyed_hash import is_authentic, keyed_hash

KEY, OTHER = b"k" * 32, b"o" * 32
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


def test_hash_matches_rfc_2104_computation():
    """The hash is HMAC-SHA256 over purpose and content as sorted JSON."""
    # printf '["purpose",{"a":1,"b":2}]' | openssl dgst -sha256 -hmac kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk
    expected = "4f8683e33ec6b455e271351c685ce32b04a9e26040b43c58bb042dc8d3a5c8f4"
    assert keyed_hash(KEY, "purpose", {"b": 2, "a": 1}) == expected


@given(content=JSON)
def test_own_hash_is_authentic(content):
    """What was hashed is recognised."""
    assert is_authentic(KEY, "p", content, keyed_hash(KEY, "p", content))


@given(one=JSON, other=JSON)
def test_hash_of_other_content_is_not_authentic(one, other):
    """A hash is valid for no other content."""
    assert is_authentic(KEY, "p", one, keyed_hash(KEY, "p", other)) == (_plain(one) == _plain(other))


@pytest.mark.parametrize(
    ("key", "purpose", "found"),
    [(OTHER, "p", None), (KEY, "q", None), (KEY, "p", ""), (KEY, "p", "ä" * 64), (KEY, "p", "0" * 64)],
    ids=["other key", "other purpose", "empty", "not ASCII", "zeros"],
)
def test_foreign_hash_is_not_authentic(key, purpose, found):
    """A hash of another key or purpose, or no hash at all, is not valid."""
    content = {"uid": "1"}
    found = keyed_hash(key, purpose, content) if found is None else found
    assert not is_authentic(KEY, "p", content, found)


def _plain(value: Any) -> Any:
    """Content that JSON tells apart: True and 1 are equal in Python."""
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return type(value).__name__, value

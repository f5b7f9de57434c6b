"""The claims of a token, and when it is renewed."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model.token_life import token_life

START = 1_800_000_000
HOUR = 3600


def token(**claims: Any) -> str:
    """Return a JWT with these claims and no valid signature."""
    body = {"sub": "system:serviceaccount:ns:vn", "iat": START, **claims}
    parts = (base64.urlsafe_b64encode(json.dumps(one).encode()).decode().rstrip("=") for one in ({}, body))
    return ".".join((*parts, "signature"))


@pytest.mark.parametrize(
    ("lasts", "after"), [(10 * 60, 8 * 60), (10 * HOUR, 8 * HOUR), (720 * HOUR, 24 * HOUR)]
)
def test_is_renewed_like_in_a_kubelet(lasts, after):
    """After 80 % of its life, or a day."""
    life = token_life(token(exp=START + lasts))
    assert life is not None
    assert (life.namespace, life.account) == ("ns", "vn")
    assert life.renew_at() == datetime.fromtimestamp(START, UTC) + timedelta(seconds=after)


def test_a_legacy_token_is_never_renewed():
    """It does not expire."""
    life = token_life(token())
    assert life is not None
    assert life.renew_at() is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a.b.c",
        "opaque",
        token(sub="system:node:a"),
        token(sub=5),
        token(exp="x"),
        token(exp=1e300),
        "é.é.é",
        f"a.{base64.urlsafe_b64encode(b'[' * 100_000).decode()}.b",
    ],
)
def test_other_tokens_have_no_claims(text):
    """Nothing is guessed."""
    assert token_life(text) is None


@given(st.text())
def test_no_text_is_an_error(text):
    """For any content of a Secret."""
    assert token_life(text) is None or text.count(".") == 2
    token_life(f"a.{text}.b")

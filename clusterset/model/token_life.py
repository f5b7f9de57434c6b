"""Reads a ServiceAccount token (JWT) without verifying it: only for tokens of our own programs."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from controller_runtime.apimachinery.decoding import decode

_RENEW_SHARE = 0.8
"""Share of a token's lifetime after which it is renewed, as in the kubelet."""
_RENEW_AFTER = timedelta(hours=24)
"""Age at which a token is renewed in any case, as in the kubelet."""
_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class TokenLife:
    """A token's account and validity."""

    namespace: str
    account: str
    starts: datetime
    ends: datetime | None
    """None: it never expires (a legacy token)."""

    def renew_at(self) -> datetime | None:
        """Return when to renew the token; None: never, because it does not expire."""
        if self.ends is None:
            return None
        return self.starts + min((self.ends - self.starts) * _RENEW_SHARE, _RENEW_AFTER)


def token_life(token: str) -> TokenLife | None:
    """Return the account and validity of a token; None if it is not the token of a ServiceAccount."""
    try:
        claims = claims_of(token)
        subject = str(claims["sub"])
        starts = datetime.fromtimestamp(claims.get("iat") or claims.get("nbf") or 0, UTC)
        ends = datetime.fromtimestamp(claims["exp"], UTC) if "exp" in claims else None
    except (binascii.Error, ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError):
        return None
    namespace, separator, account = subject.removeprefix(_ACCOUNT).partition(":")
    if not subject.startswith(_ACCOUNT) or not separator:
        return None
    return TokenLife(namespace, account, starts, ends)


def bound_to(token: str) -> tuple[str, str]:
    """Return the uids of the Node and the ServiceAccount that a token is bound to; empty: none, or not readable."""
    try:
        ours = claims_of(token)["kubernetes.io"]
        return str(ours.get("node", {}).get("uid", "")), str(ours["serviceaccount"]["uid"])
    except (binascii.Error, ValueError, TypeError, KeyError, AttributeError):
        return "", ""


def claims_of(token: str) -> Any:
    """Return the claims of a JWT.

    Raises:
        ValueError: it is not a JWT.
    """
    _, claims, _ = token.split(".")
    return decode(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))

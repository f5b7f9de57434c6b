"""What a ServiceAccount's token (JWT) says of itself. Pure; nothing is verified: only its owner may rely on it."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from controller_runtime.api.decoding import decode

_RENEW_SHARE = 0.8
"""Share of a token's life after which it is renewed, as the kubelet does."""
_RENEW_AFTER = timedelta(hours=24)
"""Age at which it is renewed in any case, as the kubelet does."""
_ACCOUNT = "system:serviceaccount:"


@dataclass(frozen=True, slots=True)
class TokenLife:
    """Whose a token is, and from when to when it is valid."""

    namespace: str
    account: str
    starts: datetime
    ends: datetime | None
    """None: never (a legacy token)."""

    def renew_at(self) -> datetime | None:
        """Return when to renew the token; None: it never expires."""
        if self.ends is None:
            return None
        return self.starts + min((self.ends - self.starts) * _RENEW_SHARE, _RENEW_AFTER)


def token_life(token: str) -> TokenLife | None:
    """Return what a token says of itself; None if it is not the token of a ServiceAccount."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims: Any = decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        subject = str(claims["sub"])
        starts = datetime.fromtimestamp(claims.get("iat") or claims.get("nbf") or 0, UTC)
        ends = datetime.fromtimestamp(claims["exp"], UTC) if "exp" in claims else None
    except (binascii.Error, ValueError, TypeError, KeyError, AttributeError, OverflowError, OSError):
        return None
    namespace, separator, account = subject.removeprefix(_ACCOUNT).partition(":")
    if not subject.startswith(_ACCOUNT) or not separator:
        return None
    return TokenLife(namespace, account, starts, ends)

"""Judges when the serving certificate of a lower API server expires. Does no IO."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509

SOON = timedelta(days=7)
"""Time before a certificate's expiry at which a fault is reported; ``inspect`` then reports an error."""
_SHARE = 10
"""Divisor of a lifetime: a fault is reported only in its last tenth, as short-lived certificates are renewed late."""


def certificate(der: bytes | None) -> x509.Certificate | None:
    """Return the parsed DER certificate; None: there is none, or it cannot be parsed."""
    from cryptography import x509  # noqa: PLC0415 - commands that judge no certificate do not load it

    try:
        return x509.load_der_x509_certificate(der) if der else None
    except ValueError:
        return None


def ending(der: bytes | None, now: datetime) -> str:
    """Return the cause of the fault of a serving certificate that expires soon or has expired; empty: no fault.

    Args:
        der: the certificate; None: unknown, which is no fault.
        now: timezone-aware current time.
    """
    if (found := certificate(der)) is None:
        return ""
    starts, ends = found.not_valid_before_utc, found.not_valid_after_utc
    if ends - now >= min(SOON, (ends - starts) / _SHARE):
        return ""
    word = "ends" if ends > now else "ended"
    return f"the serving certificate of its API server {word} on {ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"

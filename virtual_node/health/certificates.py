"""When the serving certificate of a lower API server ends. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from cryptography import x509

SOON = timedelta(days=7)
"""Time left at which an expiry is a fault; ``inspect`` calls it an error then."""
_SHARE = 10
"""A certificate that lives for weeks is renewed late: its last tenth is soon."""


def certificate(der: bytes | None) -> x509.Certificate | None:
    """Return a certificate in DER; None where there is none or it cannot be read."""
    try:
        return x509.load_der_x509_certificate(der) if der else None
    except ValueError:
        return None


def ending(der: bytes | None, now: datetime) -> str:
    """Return the cause of the fault of a serving certificate that ends soon or has ended; empty: it does not.

    Args:
        der: the certificate; None: it is not known.
        now: with its zone.
    """
    if (found := certificate(der)) is None:
        return ""
    starts, ends = found.not_valid_before_utc, found.not_valid_after_utc
    if ends - now >= min(SOON, (ends - starts) / _SHARE):
        return ""
    word = "ends" if ends > now else "ended"
    return f"the serving certificate of its API server {word} on {ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"

"""Judges when credentials and certificates expire, and writes durations for messages. Does no IO."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from virtual_node.examine.codes import Severity

if TYPE_CHECKING:
    from cryptography import x509

SOON = timedelta(days=7)
"""Time before a certificate's expiry at which a fault is reported; ``inspect`` then reports an error."""
LEGACY_TOKEN = "LegacyToken"  # noqa: S105 - a kind of credential
_SHARE = 10
"""Divisor of a lifetime: a fault is reported only in its last tenth, as short-lived certificates are renewed late."""


@dataclass(frozen=True, slots=True)
class Expiry:
    """A credential or certificate that expires."""

    cluster: str
    kind: str
    """``ClientCertificate``, ``Token``, ``ServingCertificate``, ``WebhookCA``, or ``LEGACY_TOKEN``, which never
    expires."""
    name: str
    """Where the credential is, such as a kubeconfig, a server's URL or a webhook."""
    ends: datetime
    starts: datetime | None = None
    renewed: bool = False
    """Whether the credential may be renewed before it expires, because it is in a file or we renew it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiryLimits:
    """Thresholds for findings: the age of a problem (``grace``), and remaining lifetimes."""

    grace: timedelta = timedelta(minutes=5)
    expiry_warning: timedelta = timedelta(days=30)
    expiry_error: timedelta = SOON


def severity_of(limits: ExpiryLimits, one: Expiry, now: datetime) -> Severity | None:
    """Return the severity of an expiry; information: it is a token that never expires; None: it is not soon.

    A renewed credential with a lifetime below the warning limit, such as a pod's token that is valid for an
    hour, would always be reported. So it is a warning in the last tenth of its lifetime, and an error after its expiry.
    """
    if one.kind == LEGACY_TOKEN:
        return Severity.INFO
    warning, error = limits.expiry_warning, limits.expiry_error
    life = one.ends - one.starts if one.renewed and one.starts is not None else None
    if life is not None and life <= warning:
        warning, error = life / _SHARE, timedelta()
    left = one.ends - now
    if left >= warning:
        return None
    return Severity.ERROR if left <= timedelta() or left < error else Severity.WARNING


def certificate(der: bytes | None) -> x509.Certificate | None:
    """Return the parsed DER certificate; None: there is none, or it cannot be parsed."""
    from cryptography import x509  # noqa: PLC0415 - commands that judge no certificate do not load it

    try:
        return x509.load_der_x509_certificate(der) if der else None
    except ValueError:
        return None


def ending(der: bytes | None, now: datetime) -> str:
    """Return the cause of the fault of a serving certificate that expires soon or has expired; empty: no fault, or unknown."""
    if (found := certificate(der)) is None:
        return ""
    starts, ends = found.not_valid_before_utc, found.not_valid_after_utc
    if ends - now >= min(SOON, (ends - starts) / _SHARE):
        return ""
    word = "ends" if ends > now else "ended"
    return f"the serving certificate of its API server {word} on {ends.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def span(length: timedelta) -> str:
    """Return a duration in words: 45 s, 12 min, 3 h, 5 days."""
    seconds = abs(length.total_seconds())
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // 86400)} days"

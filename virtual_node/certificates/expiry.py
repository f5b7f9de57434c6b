"""Credentials and certificates that expire, and durations for messages. No IO."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from virtual_node.examine import serving_certificate


def limits_of(limits: ExpiryLimits, one: Expiry) -> tuple[timedelta, timedelta]:
    """Return the remaining times below which an expiry is a warning and an error.

    A renewed credential with a lifetime below the warning limit, such as a pod's token that is valid for an
    hour, would always be reported. So it is a warning in the last tenth of its lifetime, and an error after its expiry.
    """
    if one.renewed and one.starts is not None:
        life = one.ends - one.starts
        if life <= limits.expiry_warning:
            return life / 10, timedelta()
    return limits.expiry_warning, limits.expiry_error


UPPER = "upper"


LEGACY_TOKEN = "LegacyToken"  # noqa: S105 - a kind of credential


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
    expiry_error: timedelta = serving_certificate.SOON


def span(length: timedelta) -> str:
    """Return a duration in words: 45 s, 12 min, 3 h, 5 days."""
    seconds = abs(length.total_seconds())
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{int(seconds // size)} {unit}"
    return f"{int(seconds // 86400)} days"

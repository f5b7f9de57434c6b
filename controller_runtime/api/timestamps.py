"""Times as Kubernetes writes them."""

from __future__ import annotations

from datetime import UTC, datetime


def rfc3339(moment: datetime) -> str:
    """metav1.Time: whole seconds, UTC, ``Z``."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def micro_time(moment: datetime) -> str:
    """metav1.MicroTime: always six digits; the API server refuses a Lease without them."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def parse(text: str) -> datetime:
    """Read either form.

    Raises:
        ValueError: not an RFC 3339 time.
    """
    return datetime.fromisoformat(text)

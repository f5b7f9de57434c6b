"""Formats and parses times as Kubernetes does."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def rfc3339(moment: datetime) -> str:
    """Return a metav1.Time: full seconds, UTC, ``Z``."""
    return _utc(moment, "seconds")


def micro_time(moment: datetime) -> str:
    """Return a metav1.MicroTime: always six digits, because the API server refuses a Lease without them."""
    return _utc(moment, "microseconds")


def parse(text: str) -> datetime:
    """Parse an RFC 3339 time.

    Raises:
        ValueError: not an RFC 3339 time.
    """
    if _PATTERN.fullmatch(text) is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time")
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{text!r} is not an RFC 3339 time: {error}") from None


def _utc(moment: datetime, precision: str) -> str:
    # strftime is not used, because its %Y omits leading zeros on Linux.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=precision) + "Z"

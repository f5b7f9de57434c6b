"""Times as Kubernetes writes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

_PATTERN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", re.ASCII)


def rfc3339(moment: datetime) -> str:
    """metav1.Time: whole seconds, UTC, ``Z``."""
    return _utc(moment, "seconds")


def micro_time(moment: datetime) -> str:
    """metav1.MicroTime: always six digits; the API server refuses a Lease without them."""
    return _utc(moment, "microseconds")


def parse(text: str) -> datetime:
    """Read either form.

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
    # Not strftime, whose %Y leaves out leading zeros on Linux.
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=precision) + "Z"

"""Times are written as metav1 writes them, and read back."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.apimachinery import timestamps

MOMENTS = st.datetimes(
    min_value=datetime(1, 1, 3),  # noqa: DTZ001 - hypothesis adds the zone
    max_value=datetime(9999, 12, 29),  # noqa: DTZ001
    timezones=st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)


def test_both_forms() -> None:
    """Time has whole seconds, MicroTime always six digits; both are UTC with a Z."""
    moment = datetime(2024, 2, 29, 23, 30, 5, 70, tzinfo=timezone(timedelta(hours=-1)))
    assert timestamps.rfc3339(moment) == "2024-03-01T00:30:05Z"
    assert timestamps.micro_time(moment) == "2024-03-01T00:30:05.000070Z"
    assert timestamps.micro_time(moment.replace(microsecond=0)) == "2024-03-01T00:30:05.000000Z"


def test_gos_zero_time() -> None:
    """Years have four digits, as in Go's zero time."""
    zero = datetime(1, 1, 1, tzinfo=UTC)
    assert timestamps.rfc3339(zero) == "0001-01-01T00:00:00Z"
    assert timestamps.micro_time(zero) == "0001-01-01T00:00:00.000000Z"
    assert timestamps.parse("0001-01-01T00:00:00Z") == zero


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2024-01-02T03:04:05Z", datetime(2024, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2024-01-02T03:04:05.5Z", datetime(2024, 1, 2, 3, 4, 5, 500_000, tzinfo=UTC)),
        ("2024-01-02T03:04:05.123456789Z", datetime(2024, 1, 2, 3, 4, 5, 123_456, tzinfo=UTC)),
        ("2024-01-02T03:04:05+02:00", datetime(2024, 1, 2, 1, 4, 5, tzinfo=UTC)),
    ],
)
def test_parse(text: str, expected: datetime) -> None:
    """Fractions of any length and offsets are parsed; Go may write nanoseconds."""
    assert timestamps.parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2024-01-02", "2024-01-02T03:04:05", "20240102T030405Z", "2024-W01-2T03:04:05Z"),
        *("2024-01-02T03:04Z", "2024-02-30T00:00:00Z", "2024-01-02T25:00:00Z", "2024-01-02T03:04:05Z "),
    ],
)
def test_other_times_are_refused(text: str) -> None:
    """An invalid RFC 3339 time is a ValueError, never a naive time that fails later."""
    with pytest.raises(ValueError, match="not an RFC 3339 time"):
        timestamps.parse(text)


@given(MOMENTS)
def test_round_trip(moment: datetime) -> None:
    """MicroTime is exact, Time loses the fraction of a second only."""
    assert timestamps.parse(timestamps.micro_time(moment)) == moment
    assert timestamps.parse(timestamps.rfc3339(moment)) == moment.replace(microsecond=0)

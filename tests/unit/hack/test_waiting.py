"""Waiting in tests on real clusters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hack.sandbox import SandboxError
from tests.waiting import becomes, eventually


def reads(*values: Any) -> Any:
    """Return a reader that returns, or raises, these values in order."""
    left: Iterator[Any] = iter(values)

    async def read() -> Any:
        value = next(left)
        if isinstance(value, Exception):
            raise value
        return value

    return read


async def test_unreadable_values_are_read_again():
    """A missing object, or a missing field of it."""
    await becomes(reads(SandboxError("not found"), KeyError("status"), 1, 2), 2)


async def test_timeout_fails_with_the_last_value():
    """The message has the expectation and the last value."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)three pods\nwanted 3, last was 2"):
        await becomes(reads(2), 3, within=-1, what="three pods")
    with pytest.raises(pytest.fail.Exception, match=r"SandboxError.*nobody home"):
        await eventually(reads(SandboxError("nobody home")), within=-1)


async def test_an_assertion_fails_at_once():
    """Without waiting."""
    with pytest.raises(AssertionError, match="two of them"):
        await eventually(reads(AssertionError("two of them"), True))

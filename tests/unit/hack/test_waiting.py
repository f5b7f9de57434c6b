"""How tests on real clusters wait."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hack.sandbox import SandboxError
from tests.waiting import becomes, eventually


def reads(*values: Any) -> Any:
    """A reader that gives, or raises, one after the other."""
    left: Iterator[Any] = iter(values)

    async def read() -> Any:
        value = next(left)
        if isinstance(value, Exception):
            raise value
        return value

    return read


async def test_what_cannot_be_read_is_not_so_yet():
    """An object that is not there, and a field that it does not have, are asked for again."""
    await becomes(reads(SandboxError("not found"), KeyError("status"), 1, 2), 2)


async def test_what_never_comes_fails_with_the_last_that_was_read():
    """The message says what was wanted, and what was there."""
    with pytest.raises(pytest.fail.Exception, match=r"(?s)three pods\nwanted 3, last was 2"):
        await becomes(reads(2), 3, within=-1, what="three pods")
    with pytest.raises(pytest.fail.Exception, match=r"SandboxError.*nobody home"):
        await eventually(reads(SandboxError("nobody home")), within=-1)


async def test_an_assertion_fails_at_once():
    """What must never be is not waited for."""
    with pytest.raises(AssertionError, match="two of them"):
        await eventually(reads(AssertionError("two of them"), True))

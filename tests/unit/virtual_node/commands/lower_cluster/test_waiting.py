"""Commands that change clusters wait through short outages, and not longer than the user asked."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from controller_runtime.errors import ApiError, ConnectionFailed, Forbidden, TooManyRequests
from virtual_node.commands.lower_cluster.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.looptime]
SILENT = ConnectionFailed("no answer")


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["yes"], "yes"),
        ([None, "yes"], "yes"),
        ([SILENT, None, TooManyRequests("busy"), "yes"], "yes"),
        ([None], None),
        ([SILENT, None], None),
        ([SILENT], SILENT),
        ([None, Forbidden("no"), "yes"], Forbidden("no")),
    ],
    ids=["at once", "later", "outage", "never", "never after an outage", "no answer", "refused"],
)
async def test_a_wait_ends_with_the_first_result_or_the_time(
    answers: Sequence[str | ApiError | None], expected: str | ApiError | None
):
    """The last answer repeats."""
    asked = 0

    async def check() -> str | None:
        nonlocal asked
        answer = answers[min(asked, len(answers) - 1)]
        asked += 1
        if isinstance(answer, ApiError):
            raise answer
        return answer

    if isinstance(expected, ApiError):
        with pytest.raises(type(expected)):
            await until(check, seconds=5)
    else:
        assert await until(check, seconds=5) == expected

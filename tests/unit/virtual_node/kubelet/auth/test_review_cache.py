"""Results of reviews: cached, requested once, and kept in reserve."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.errors import ConnectionFailed, Forbidden
from virtual_node.kubelet.auth import ReviewCache


class Reviewer:
    """Returns scripted answers, in order, and counts."""

    def __init__(self, *answers: bool | Exception) -> None:
        self.answers = list(answers)
        self.asked = 0
        self.gate: asyncio.Event | None = None

    async def __call__(self) -> bool:
        """Return the next answer."""
        self.asked += 1
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def _cache(*, stale: float = 600.0, size: int = 10) -> ReviewCache[str, bool]:
    return ReviewCache(lambda allowed: 300.0 if allowed else 30.0, stale=stale, size=size)


@pytest.mark.looptime
async def test_each_answer_has_its_own_lifetime() -> None:
    """Half a minute for a refusal, five for a permission."""
    cache, ask = _cache(), Reviewer(False, True, False)
    for wait, expected, asked in ((0, False, 1), (29, False, 1), (2, True, 2), (299, True, 2), (2, False, 3)):
        await asyncio.sleep(wait)
        assert await cache.get("q", ask) is expected
        assert ask.asked == asked


async def test_concurrent_requests_share_one_review() -> None:
    """A cancelled caller does not affect the others."""
    cache, ask = _cache(), Reviewer(True)
    ask.gate = asyncio.Event()
    callers = [asyncio.create_task(cache.get("q", ask)) for _ in range(20)]
    await asyncio.sleep(0)
    callers[0].cancel()
    ask.gate.set()
    answers = await asyncio.gather(*callers, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [True] * 19
    assert ask.asked == 1


@pytest.mark.looptime
async def test_an_expired_answer_is_used_while_the_reviewer_is_unreachable() -> None:
    """Up to its limit; afterwards the failure is raised."""
    away = ConnectionFailed("refused")
    cache, ask = _cache(stale=600), Reviewer(True, away, away)
    await cache.get("q", ask)
    await asyncio.sleep(301)
    assert await cache.get("q", ask) is True
    await asyncio.sleep(600)
    with pytest.raises(ConnectionFailed):
        await cache.get("q", ask)


@pytest.mark.looptime
async def test_a_silent_reviewer_counts_as_unreachable() -> None:
    """After ten seconds the expired answer is used."""
    cache, ask = _cache(), Reviewer(True)
    await cache.get("q", ask)
    await asyncio.sleep(301)
    ask.gate = asyncio.Event()
    before = asyncio.get_running_loop().time()
    assert await cache.get("q", ask) is True
    assert asyncio.get_running_loop().time() - before == 10


@pytest.mark.looptime
async def test_a_reviewer_that_refuses_is_reachable() -> None:
    """A lost right takes effect at once: only outages are bridged."""
    cache, ask = _cache(), Reviewer(True, Forbidden("no", code=403))
    await cache.get("q", ask)
    await asyncio.sleep(301)
    with pytest.raises(Forbidden):
        await cache.get("q", ask)


async def test_the_least_recently_used_answer_is_dropped_first() -> None:
    """Memory is bounded."""
    cache, ask = _cache(size=2), Reviewer(True, True, True, True)
    for key in ("a", "b", "a", "c", "a"):
        await cache.get(key, ask)
    assert ask.asked == 3
    await cache.get("b", ask)
    assert ask.asked == 4


async def test_closing_cancels_reviews_in_progress() -> None:
    cache, ask = _cache(), Reviewer(True)
    ask.gate = asyncio.Event()
    caller = asyncio.create_task(cache.get("q", ask))
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await caller

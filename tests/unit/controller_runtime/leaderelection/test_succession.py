"""A second candidate leads after the first, and never too early."""

from __future__ import annotations

import asyncio

import pytest

from tests.unit.controller_runtime.leaderelection.election import (
    KEY,
    Client,
    Store,
    Work,
    candidate,
    direct,
    lease,
    refusing,
    standing,
)

pytestmark = pytest.mark.looptime


class TestSuccession:
    """A second candidate."""

    async def test_release_hands_over_within_a_retry_period(self) -> None:
        """A leader that ends cleanly releases the Lease after its work has stopped; the other leads in under 3 s."""
        store = Store()
        first, second = Work(cleanup=1), Work()
        leading = asyncio.create_task(candidate(Client(store), first, "a").run())
        await first.begun.wait()
        async with standing(candidate(Client(store), second, "b")):
            await asyncio.sleep(30)
            assert second.started == []
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            await second.begun.wait()
            assert 0 <= second.started[0] - first.stopped[0] < 3
            assert store.spec["leaseTransitions"] == 1

    async def test_released_lease_has_no_holder(self) -> None:
        """And a duration of one second, as client-go leaves it."""
        store, work = Store(), Work()
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
        assert (store.holder, store.spec["leaseDurationSeconds"]) == ("", 1)

    async def test_release_is_optional(self) -> None:
        """Without release_on_cancel the Lease expires."""
        store, work = Store(), Work()
        async with standing(candidate(Client(store), work, "a", release_on_cancel=False)):
            await work.begun.wait()
        assert store.holder == "a"

    async def test_dead_leader_is_succeeded_after_the_observed_duration(self) -> None:
        """Measured from the candidate's own first observation, independent of the holder's clock."""
        store, work = Store(), Work()
        store.create("leases", lease(holderIdentity="dead", leaseDurationSeconds=15))
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
        assert 15 <= work.started[0] <= 15 + 2 * 1.2

    async def test_deleted_lease_is_not_taken_from_a_live_leader(self) -> None:
        """The leader creates it again."""
        store = Store()
        mine, first, second = Client(store), Work(), Work()
        async with standing(candidate(mine, first, "a")):
            await first.begun.wait()
            async with standing(candidate(Client(store), second, "b")):
                await asyncio.sleep(5)
                mine.network = refusing
                store.remove("leases", KEY)
                await asyncio.sleep(7)  # the other reads at least twice
                assert store.lease is None
                mine.network = direct
                await asyncio.sleep(20)
                assert store.holder == "a"
                assert (first.active, second.active) == (1, 0)

    async def test_lease_is_renewed_while_the_work_stops(self) -> None:
        store = Store()
        first, second = Work(cleanup=40), Work()
        leading = asyncio.create_task(candidate(Client(store), first, "a").run())
        await first.begun.wait()
        async with standing(candidate(Client(store), second, "b")):
            leading.cancel()
            await asyncio.gather(leading, return_exceptions=True)
            await second.begun.wait()
        assert first.stopped[0] == pytest.approx(40)
        assert 40 <= second.started[0] < 43

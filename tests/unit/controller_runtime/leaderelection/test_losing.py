"""A leader that cannot renew stops before another may start."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from structlog.testing import capture_logs

from controller_runtime.errors import Forbidden, Unavailable
from tests.unit.controller_runtime.leaderelection.election import (
    Client,
    Network,
    Store,
    Work,
    candidate,
    direct,
    now,
    refusing,
    silent,
    standing,
)

pytestmark = pytest.mark.looptime
EARLY = 0.012073
"""A time of the loop's clock in microseconds to which adding ten seconds rounds up."""


class TestLosing:
    """A leader that cannot renew."""

    @pytest.mark.parametrize("network", [silent, refusing], ids=["silent", "refusing"])
    async def test_cut_off_leader_stops_before_another_may_start(self, network: Network) -> None:
        """Ten seconds after the start of its last renewal the work is cancelled; the other starts after 15."""
        store = Store()
        mine, other = Client(store), Client(store)
        first, second = Work(), Work()
        elector = candidate(mine, first, "a")
        async with standing(elector), standing(candidate(other, second, "b")):
            await asyncio.sleep(20)
            await store.changed.wait()
            renewed = now()
            mine.network = network
            await first.ended.wait()
            assert not elector.is_leader
            assert first.stopped[0] == pytest.approx(renewed + 10, abs=0.01)
            await second.begun.wait()
            assert second.started[0] >= renewed + 15

    async def test_leader_that_lost_is_a_candidate_again(self) -> None:
        """When the server is back it can lead again."""
        client, work = Client(Store()), Work()
        async with standing(candidate(client, work, "a")):
            await work.begun.wait()
            client.network = refusing
            await work.ended.wait()
            client.network = direct
            work.begun.clear()
            await work.begun.wait()
        assert len(work.started) == 2

    async def test_short_outage_is_survived(self) -> None:
        """Up to the renew deadline a leader continues without its server.

        Five seconds: with a retry period of 2.4 s (jitter included) before and after, that is within the ten.
        """
        client, work = Client(Store()), Work()
        async with standing(candidate(client, work, "a")):
            await asyncio.sleep(10)
            client.network = refusing
            await asyncio.sleep(5)
            client.network = direct
            await asyncio.sleep(60)
            assert work.stopped == []

    async def test_stolen_lease_ends_the_work_at_once(self) -> None:
        """At the leader's next renewal."""
        store, work = Store(), Work()
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
            store.steal()
            await work.ended.wait()
            assert work.stopped[0] <= 2 * 1.2

    @pytest.mark.looptime(start=EARLY)
    async def test_is_leader_is_false_while_cancelled_at_the_renew_deadline(self) -> None:
        """Even where the timer of the deadline fired slightly early."""
        client, seen = Client(Store()), []

        async def work() -> None:
            client.network = refusing
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(elector.is_leader)
                client.network = direct

        elector = candidate(client, work, "a")
        async with standing(elector):
            await asyncio.sleep(10.5)
        assert seen[0] is False

    async def test_is_leader_is_false_while_stopping_after_a_stolen_lease(self) -> None:
        """From the moment that the stolen Lease is noticed."""
        store, seen = Store(), []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(elector.is_leader)

        elector = candidate(Client(store), work, "a")
        async with standing(elector):
            await asyncio.sleep(1)
            store.steal()
            await asyncio.sleep(3)
        assert seen == [False]

    async def test_is_leader_is_correct_before_the_work_is_cancelled(self) -> None:
        """It follows the clock: after a stall of the process it is false before any other code runs."""
        client, work = Client(Store()), Work()
        elector = candidate(client, work, "a")
        async with standing(elector):
            await work.begun.wait()
            assert elector._candidate._renewed_at is not None
            elector._candidate._renewed_at -= 10.1
            assert not elector.is_leader

    async def test_work_that_ignores_cancellation_is_awaited(self) -> None:
        """It is logged, and never runs twice."""
        client, work = Client(Store()), Work(cleanup=60)
        async with standing(candidate(client, work, "a")):
            await work.begun.wait()
            client.network = refusing
            with capture_logs() as logs:
                await work.ended.wait()
            client.network = direct
            assert work.active == 0
        assert "work has not stopped after its cancellation; waiting for it" in [
            line["event"] for line in logs
        ]

    async def test_failure_of_stopping_work_is_logged(self) -> None:
        """The candidacy continues."""
        client = Client(Store())
        runs = asyncio.Queue[int]()

        async def bad_cleanup() -> None:
            runs.put_nowait(1)
            try:
                await asyncio.Event().wait()
            finally:
                client.network = direct
                raise KeyError("cleanup")

        with capture_logs() as logs:
            async with standing(candidate(client, bad_cleanup, "a")):
                await runs.get()
                client.network = refusing
                await runs.get()
        assert "work failed while stopping" in [line["event"] for line in logs]

    async def test_release_survives_an_unfinished_renewal(self) -> None:
        """A renewal that was applied without its response being read does not prevent the release."""
        client, work = Client(Store()), Work()
        reached = asyncio.Event()

        async def applied_but_silent(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            request()
            client.network = direct
            reached.set()
            await asyncio.Event().wait()
            raise AssertionError

        async with standing(candidate(client, work, "a")):
            await work.begun.wait()
            client.network = applied_but_silent
            await reached.wait()
        assert client.store.holder == ""

    async def test_failing_release_does_not_delay_the_end(self) -> None:
        """If the server is unreachable, run() ends within half the renew deadline."""
        client, work = Client(Store()), Work()
        async with standing(candidate(client, work, "a")):
            await work.begun.wait()
            client.network = silent
        assert now() == pytest.approx(5, abs=0.1)

    @pytest.mark.parametrize(
        "error",
        [Forbidden("no", code=403), Unavailable("down", code=503), OSError("odd"), KeyError("bug")],
        ids=repr,
    )
    async def test_any_error_is_logged_once_and_retried(self, error: Exception) -> None:
        client, work = Client(Store()), Work()

        async def failing(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
            raise error

        client.network = failing
        with capture_logs() as logs:
            async with standing(candidate(client, work, "a")):
                await asyncio.sleep(30)
                client.network = direct
                await work.begun.wait()
        assert len([line for line in logs if line["log_level"] == "warning"]) == 1

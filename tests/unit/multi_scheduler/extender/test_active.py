"""Of several processes, only the holder of the Lease answers the scheduler."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Callable
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controller_runtime.errors import Forbidden
from multi_scheduler.extender.active import (
    BIND_SECONDS,
    IDLE_SECONDS,
    LEASE_SECONDS,
    SETTLE_SECONDS,
    NotActiveError,
)
from tests.background import working
from tests.thorough import seeds
from tests.unit.controller_runtime.leaderelection.election import (
    KEY,
    Network,
    Store,
    direct,
    now,
    refusing,
    silent,
)
from tests.unit.multi_scheduler.extender.replicas import Replica

pytestmark = pytest.mark.looptime


def metric() -> float | None:
    return REGISTRY.get_sample_value("virtual_node_extender_active")


class TestOneReplica:
    """A replica without another one."""

    async def test_takes_the_lease_when_it_is_called(self) -> None:
        """Not at start, because the Service decides which replica is called."""
        replica = Replica(Store(), "a")
        async with replica.running():
            await asyncio.sleep(60)
            assert replica.client.calls == []
            assert metric() == 0
            assert await replica.call() == ""
            assert replica.client.store.holder == "a"
            assert now() == pytest.approx(60 + SETTLE_SECONDS)
            assert metric() == 1
        assert metric() == 0

    @pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
    async def test_renews_while_calls_arrive(self, verb) -> None:
        """One write in five seconds, and no refusal."""
        replica = Replica(Store(), "a")
        async with replica.running():
            assert await replica.call(verb) == ""
            before = len(replica.client.calls)
            for _ in range(100):
                await asyncio.sleep(0.7)
                assert await replica.call(verb) == ""
            assert 12 <= len(replica.client.calls) - before <= 15

    async def test_releases_the_lease_without_calls(self) -> None:
        """A later call takes it again at once: no other process held it, so the bound pods are known."""
        replica = Replica(Store(), "a")
        async with replica.running():
            await replica.call()
            await asyncio.sleep(IDLE_SECONDS - 1)
            assert replica.client.store.holder == "a"
            await asyncio.sleep(2)
            assert replica.client.store.holder == ""
            assert metric() == 0
            requests = len(replica.client.calls)
            await asyncio.sleep(600)
            assert len(replica.client.calls) == requests
            before = now()
            assert await replica.call() == ""
            assert now() == before
            assert replica.caught_up == 1

    async def test_a_long_call_is_not_idle(self) -> None:
        """The Lease is renewed while a call waits for reservations of other pods."""
        replica = Replica(Store(), "a")
        async with replica.running():
            assert await replica.call(seconds=IDLE_SECONDS * 2) == ""
            assert replica.caught_up == 1

    async def test_refuses_when_the_lease_cannot_be_renewed(self) -> None:
        """It answers for ten seconds after its last renewal, and again when the server is back."""
        replica = Replica(Store(), "a")
        async with replica.running():
            await replica.call()
            await replica.client.store.changed.wait()
            renewed = now()
            replica.client.network = refusing
            refusal = await replica.call_until(answered=False)
            assert now() == pytest.approx(renewed + 10, abs=0.2)
            assert "connection refused" in refusal
            await asyncio.sleep(60)
            assert "connection refused" in await replica.call()
            assert metric() == 0
            replica.client.network = direct
            await asyncio.sleep(1)
            assert await replica.call() == ""
            assert replica.caught_up == 1

    async def test_silent_server_does_not_block_calls(self) -> None:
        """A call is refused within the scheduler's limit of ten seconds."""
        replica = Replica(Store(), "a")
        replica.client.network = silent
        async with replica.running():
            for _ in range(5):
                before = now()
                assert "Lease kube-system/virtual-node" in await replica.call()
                assert now() - before <= 5

    async def test_missing_right_is_reported(self) -> None:
        replica = Replica(Store(), "a")

        async def forbidden(_request: object) -> None:
            raise Forbidden("leases is forbidden", code=403)

        replica.client.network = forbidden
        async with replica.running():
            assert "leases is forbidden" in await replica.call()

    async def test_logs_each_change_once(self) -> None:
        replica = Replica(Store(), "a")
        with capture_logs() as logs:
            async with replica.running():
                for _ in range(3):
                    assert await replica.call() == ""
                await asyncio.sleep(60)
                await replica.call()
        changes = [(line["event"], line.get("reason")) for line in logs if "active" in line["event"]]
        assert changes == [
            ("this replica is active", None),
            ("this replica is not active any more", "no calls"),
            ("this replica is active", None),
            ("this replica is not active any more", "stopping"),
        ]


class TestSuspension:
    """A process that did not run for some time."""

    async def test_drops_an_answer_that_is_late(self) -> None:
        """The authority ended while the call was processed, so another replica may have promised the same room."""
        replica = Replica(Store(), "a")
        async with replica.running():
            await replica.call()

            async def suspended() -> None:
                replica.suspend(60)

            assert "Lease kube-system/virtual-node" in await replica.call(during=suspended)

    async def test_drops_an_answer_of_an_earlier_term(self) -> None:
        """The replica is active again, but another one was active during the call."""
        store = Store()
        first, second = Replica(store, "a"), Replica(store, "b")

        async def others_turn() -> None:
            first.client.network = refusing
            await second.call_until(answered=True)
            await asyncio.sleep(IDLE_SECONDS + 5)
            first.client.network = direct
            await first.call_until(answered=True)

        async with first.running(), second.running():
            await first.call()
            assert await first.call(during=others_turn) != ""
            assert first.caught_up == 2

    async def test_stops_answering_when_the_lease_was_stolen(self) -> None:
        """At its next renewal, although its authority would last longer."""
        replica = Replica(Store(), "a")
        async with replica.running():
            await replica.call()
            replica.client.store.steal()
            await asyncio.sleep(5.1)
            assert "thief is the active replica" in await replica.call()

    async def test_refuses_the_next_call(self) -> None:
        """It renews the Lease first, and learns that another process took it."""
        replica = Replica(Store(), "a")
        async with replica.running():
            await replica.call()
            await asyncio.sleep(2)
            replica.suspend(60)
            replica.client.store.steal()
            assert "thief is the active replica" in await replica.call()


class TestTwoReplicas:
    """Two replicas, as in a rolling update."""

    async def test_the_other_replica_refuses_and_names_the_holder(self) -> None:
        store = Store()
        first, second = Replica(store, "a"), Replica(store, "b")
        with capture_logs() as logs:
            async with first.running(), second.running(), working(first.keep_calling()):
                await asyncio.sleep(5)
                for _ in range(300):
                    assert "a is the active replica" in await second.call()
                    await asyncio.sleep(0.2)
                assert second.client.asked("update", "leases") == []
                assert len(second.client.calls) <= 65  # at most one request a second
        assert [line["holder"] for line in logs if line["event"] == "another replica is active"] == ["a"]

    async def test_takes_over_from_a_stopped_replica_at_once(self) -> None:
        """A stopped replica releases the Lease. The new one waits for late bindings and reads the bound pods first."""
        store = Store()
        first, second = Replica(store, "a"), Replica(store, "b")
        async with second.running():
            async with first.running():
                await first.call()
                assert "a is the active replica" in await second.call()
            stopped = now()
            await asyncio.sleep(1)
            assert await second.call() == ""
            assert now() == pytest.approx(stopped + 1 + SETTLE_SECONDS)
            assert (store.holder, second.caught_up) == ("b", 1)

    @pytest.mark.parametrize("network", [silent, refusing], ids=["silent", "refusing"])
    async def test_takes_over_from_a_cut_off_replica_when_its_lease_expired(self, network: Network) -> None:
        """The first one refused before the second answered, although both are called all the time."""
        store = Store()
        first, second = Replica(store, "a"), Replica(store, "b")
        answered: list[tuple[float, str]] = []

        async def calling(name: str, replica: Replica) -> None:
            while True:
                if not await replica.call():
                    answered.append((now(), name))
                await asyncio.sleep(0.1)

        async with first.running(), second.running():
            await first.call()
            async with working(calling("a", first)), working(calling("b", second)):
                await asyncio.sleep(20)
                first.client.network = network
                await asyncio.sleep(60)
        last = max(at for at, name in answered if name == "a")
        taken = min(at for at, name in answered if name == "b")
        assert taken - last > LEASE_SECONDS - 10
        assert taken - last < LEASE_SECONDS + SETTLE_SECONDS

    async def test_releases_only_after_its_bindings_ended(self) -> None:
        """The next replica finds the pod among the bound ones."""
        store = Store()
        first, second = Replica(store, "a"), Replica(store, "b")
        bound: list[float] = []

        async def bind() -> None:
            assert await first.call("bind", seconds=3) == ""
            bound.append(now())

        async with second.running():
            async with first.running():
                await first.call()
                binding = asyncio.create_task(bind())
                await asyncio.sleep(0.5)
                stopping = now()
            await binding
            assert bound == [pytest.approx(stopping + 2.5)]
            assert now() == pytest.approx(bound[0])
            assert store.holder == ""

    async def test_stopping_replica_refuses_at_once(self) -> None:
        """Also while it waits for its bindings, and an answer that is being computed is dropped."""
        replica = Replica(Store(), "a")
        async with contextlib.AsyncExitStack() as stack:
            task = await stack.enter_async_context(replica.running())
            await replica.call()
            calls = [asyncio.create_task(replica.call(verb, seconds=2)) for verb in ("bind", "filter")]
            await asyncio.sleep(1)
            task.cancel()
            await asyncio.sleep(0.5)
            assert replica.client.store.holder == "a"
            assert "stopping" in await replica.call()
            bind, filtered = await asyncio.gather(*calls)
            assert bind == ""
            assert "stopping" in filtered

    async def test_never_both_answer_on_a_bad_network(self) -> None:
        """Whatever is called, lost or stopped: an answer of one replica is never in the time of the other."""
        for seed in seeds(5, 40):
            await _random_walk(random.Random(seed))


async def _random_walk(chance: random.Random) -> None:
    store = Store()
    replicas = {name: Replica(store, name) for name in "abc"}
    answers: list[tuple[float, str]] = []

    async def calling(name: str, replica: Replica) -> None:
        while True:
            verb, longest = chance.choice([("filter", 0.0), ("filter", 2.0), ("bind", 0.1), ("bind", 9.0)])
            if not await replica.call(verb, seconds=chance.uniform(0, longest)):
                answers.append((now(), name))
            await asyncio.sleep(chance.choice([0.1, 1.0, 10.0, 40.0]))

    async def life(replica: Replica) -> None:
        while True:
            async with replica.running():
                for _ in range(chance.randrange(1, 10)):
                    replica.client.network = chance.choice([direct, direct, silent, refusing, slow, lossy])
                    await asyncio.sleep(chance.uniform(0, 30))
            replica.restart()

    async def slow(request: Callable[[], Any]) -> Any:
        await asyncio.sleep(chance.uniform(0, 8))
        return request()

    async def lossy(request: Callable[[], Any]) -> Any:
        answer = request()
        await asyncio.sleep(chance.uniform(0, 8))
        return answer

    async with contextlib.AsyncExitStack() as stack:
        for name, replica in replicas.items():
            await stack.enter_async_context(working(life(replica)))
            await stack.enter_async_context(working(calling(name, replica)))
        await asyncio.sleep(900)
    assert len({name for _, name in answers}) > 1
    for (earlier, one), (later, other) in itertools.pairwise(answers):
        assert one == other or later - earlier >= SETTLE_SECONDS, (one, earlier, other, later)


class TestTakeover:
    """A replica that took the Lease from another one."""

    async def test_reads_the_bound_pods_again_after_each_takeover(self) -> None:
        """But not if no other replica held the Lease in between."""
        store = Store()
        first, second = Replica(store, "a"), Replica(store, "b")
        async with first.running(), second.running():
            for turn in range(1, 4):
                for replica in (first, second):
                    assert await replica.call() == ""
                    await asyncio.sleep(IDLE_SECONDS + 1)
                    assert await replica.call() == ""
                    await asyncio.sleep(IDLE_SECONDS + 1)
                    assert replica.caught_up == turn

    async def test_refuses_until_the_bound_pods_are_known(self) -> None:
        """The reason is in the refusal; it tries again by itself, and renews the Lease meanwhile."""
        replica = Replica(Store(), "a")
        replica.error = Forbidden("pods is forbidden", code=403)
        async with replica.running():
            for _ in range(10):
                assert "pods is forbidden" in await replica.call()
            assert replica.client.store.holder == "a"
            assert metric() == 0
            replica.error = None
            await asyncio.sleep(1)
            assert await replica.call() == ""
            assert metric() == 1

    async def test_deleted_lease_counts_as_a_takeover(self) -> None:
        """Another replica may have held it before it was deleted."""
        store = Store()
        replica = Replica(store, "a")
        async with replica.running():
            await replica.call()
            await asyncio.sleep(IDLE_SECONDS + 1)
            store.remove("leases", KEY)
            assert await replica.call() == ""
            assert replica.caught_up == 2

    async def test_own_expired_lease_is_no_takeover(self) -> None:
        """Nobody took it while the server was unreachable."""
        replica = Replica(Store(), "a")
        async with replica.running():
            await replica.call()
            replica.client.network = silent
            await asyncio.sleep(LEASE_SECONDS * 3)
            replica.client.network = direct
            await asyncio.sleep(5)
            assert await replica.call() == ""
            assert replica.caught_up == 1


class TestBinding:
    """Bindings, which make a promise final."""

    async def test_is_limited_in_time(self) -> None:
        """It has ended before another replica can take the Lease."""
        replica = Replica(Store(), "a")
        async with replica.running():
            await replica.call()
            before = now()
            assert "not known whether the pod is bound" in await replica.call("bind", seconds=60)
            assert now() == pytest.approx(before + BIND_SECONDS)

    async def test_needs_a_filter_call_in_the_same_term(self) -> None:
        """Room of other pods was promised by another replica. A filter call allows one binding."""
        store = Store()
        first, second = Replica(store, "a"), Replica(store, "b")
        async with first.running(), second.running():
            await first.call()
            for uid in ("u1", "u2", "u3"):
                first.active.filtered(uid)
            first.active.check_filtered("u1")
            with pytest.raises(NotActiveError, match="filter the pod again"):
                first.active.check_filtered("u1")
            await asyncio.sleep(IDLE_SECONDS + 1)
            await first.call()
            first.active.check_filtered("u2")  # no other replica was active meanwhile
            await asyncio.sleep(IDLE_SECONDS + 1)
            await second.call()
            with pytest.raises(NotActiveError):
                second.active.check_filtered("u3")
            await asyncio.sleep(IDLE_SECONDS + 1)
            await first.call()
            with pytest.raises(NotActiveError):
                first.active.check_filtered("u3")

    async def test_filtered_pods_do_not_fill_the_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The oldest are forgotten, and must be filtered again. Without bindings nothing is kept."""
        monkeypatch.setattr("multi_scheduler.extender.active._MOST_FILTERED", 2)
        replica = Replica(Store(), "a")
        for uid in ("u1", "u2", "u1", "u3"):
            replica.active.filtered(uid)
        assert list(replica.active._filtered) == ["u1", "u3"]
        replica.active.binds = False
        replica.active.filtered("u4")
        assert list(replica.active._filtered) == ["u1", "u3"]

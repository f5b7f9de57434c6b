from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from controller_runtime import resources
from controller_runtime.errors import (
    AlreadyExists,
    BadRequest,
    Conflict,
    ConnectionFailed,
    Forbidden,
    NotFound,
    Unavailable,
)
from controller_runtime.leader_election import LeaderElector
from controller_runtime.resources import Resource

pytestmark = pytest.mark.looptime

EARLY = 0.012073
"""A time, of the loop's clock in microseconds, to which ten seconds add up to a little more than the clock will say."""
MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


class Store:
    """One Lease in an apiserver: resource versions, conflicts, and the strictness of 1.34 about times."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.changed = asyncio.Event()

    def get(self) -> dict[str, Any]:
        """GET."""
        if self.lease is None:
            raise NotFound("no lease", code=404)
        return copy.deepcopy(self.lease)

    def create(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """POST."""
        if self.lease is not None:
            raise AlreadyExists("exists", code=409)
        return self._put(body)

    def update(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT."""
        if self.lease is None:
            raise NotFound("no lease", code=404)
        if body["metadata"].get("resourceVersion") != self.lease["metadata"]["resourceVersion"]:
            raise Conflict("changed", code=409)
        return self._put(body)

    def delete(self) -> None:
        """DELETE."""
        self.lease = None

    @property
    def spec(self) -> dict[str, Any]:
        """The Lease's spec."""
        assert self.lease is not None
        spec: dict[str, Any] = self.lease["spec"]
        return spec

    @property
    def holder(self) -> str:
        """Who holds it."""
        return str(self.spec["holderIdentity"]) if self.lease else ""

    def _put(self, body: Mapping[str, Any]) -> dict[str, Any]:
        spec = body["spec"]
        if not (MICRO_TIME.fullmatch(spec["renewTime"]) and MICRO_TIME.fullmatch(spec["acquireTime"])):
            raise BadRequest("parsing time", code=400)
        if not isinstance(spec["leaseDurationSeconds"], int) or spec["leaseDurationSeconds"] < 1:
            raise BadRequest("leaseDurationSeconds", code=400)
        assert body["kind"] == "Lease"
        assert body["apiVersion"] == "coordination.k8s.io/v1"
        self.version += 1
        self.lease = copy.deepcopy(dict(body))
        self.lease["metadata"] = dict(body["metadata"]) | {"resourceVersion": str(self.version)}
        self.changed.set()
        self.changed = asyncio.Event()
        return copy.deepcopy(self.lease)


Network = Callable[[Callable[[], dict[str, Any]]], Awaitable[dict[str, Any]]]


class Client:
    """A candidate's way to the store; ``network`` is what happens to its requests."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.calls: list[str] = []
        self.network: Network = direct

    async def get(self, resource: Resource, name: str, *, namespace: str | None = None) -> dict[str, Any]:
        """GET."""
        assert (resource, namespace, name) == (resources.LEASES, "kube-system", "virtual-node")
        return await self._call("get", self.store.get)

    async def create(
        self, resource: Resource, body: Mapping[str, Any], *, namespace: str | None = None
    ) -> dict[str, Any]:
        """POST."""
        assert (resource, namespace) == (resources.LEASES, "kube-system")
        return await self._call("create", lambda: self.store.create(body))

    async def update(self, resource: Resource, body: Mapping[str, Any]) -> dict[str, Any]:
        """PUT."""
        assert resource is resources.LEASES
        return await self._call("update", lambda: self.store.update(body))

    async def _call(self, verb: str, request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        self.calls.append(verb)
        return await self.network(request)


async def direct(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A network without delay or loss."""
    return request()


async def silent(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A network that swallows everything."""
    await asyncio.Event().wait()
    return request()


async def refusing(request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """A network without a server."""
    raise ConnectionFailed("connection refused")


def now() -> float:
    """Virtual seconds."""
    return asyncio.get_running_loop().time()


class Work:
    """What leaders do: nothing, but seen."""

    def __init__(self, cleanup: float = 0.0, seen: list[int] | None = None) -> None:
        self.seen = seen if seen is not None else []
        self.started: list[float] = []
        self.stopped: list[float] = []
        self.active = 0
        self.begun = asyncio.Event()
        self.ended = asyncio.Event()
        self.cleanup = cleanup

    async def __call__(self) -> None:
        """Work until cancelled."""
        self.active += 1
        self.seen.append(1)
        self.started.append(now())
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(self.cleanup)
            self.active -= 1
            self.seen.append(-1)
            self.stopped.append(now())
            self.ended.set()


def candidate(
    client: Client, work: Callable[[], Awaitable[None]], identity: str, **options: Any
) -> LeaderElector:
    """An elector with client-go's durations."""
    return LeaderElector(
        client, namespace="kube-system", name="virtual-node", identity=identity, on_started=work, **options
    )


@contextlib.asynccontextmanager
async def standing(elector: LeaderElector) -> AsyncIterator[asyncio.Task[None]]:
    """Run a candidate; leaving cancels it and waits for its end."""
    task = asyncio.create_task(elector.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class TestLeading:
    """One candidate."""

    async def test_lone_candidate_leads_at_once(self) -> None:
        """Without a lease the candidate makes one, with every field client-go reads, and works."""
        client, work = Client(Store()), Work()
        moment = datetime(2026, 1, 2, 3, 4, 5, 0, tzinfo=UTC)
        elector = candidate(client, work, "a", now=lambda: moment)
        async with standing(elector):
            await work.begun.wait()
            assert elector.is_leader
            assert elector.leader == "a"
            assert client.store.spec == {
                "holderIdentity": "a",
                "leaseDurationSeconds": 15,
                "acquireTime": "2026-01-02T03:04:05.000000Z",
                "renewTime": "2026-01-02T03:04:05.000000Z",
                "leaseTransitions": 0,
            }
        assert now() == 0

    async def test_leader_renews_with_one_request(self) -> None:
        """A leader writes its lease every retry period and reads it never."""
        client, work = Client(Store()), Work()
        async with standing(candidate(client, work, "a")):
            await asyncio.sleep(60)
            assert work.active == 1
        assert client.calls[:2] == ["get", "create"]
        assert set(client.calls[2:]) == {"update"}
        assert 25 <= len(client.calls) <= 33

    async def test_metric_tells_who_leads(self) -> None:
        """The gauge is 1 while leading, 0 before and after."""

        def gauge() -> float | None:
            return REGISTRY.get_sample_value("virtual_node_leader", {"name": "kube-system/virtual-node"})

        work = Work()
        elector = candidate(Client(Store()), work, "a")
        assert gauge() == 0
        async with standing(elector):
            await work.begun.wait()
            assert gauge() == 1
        assert gauge() == 0

    async def test_other_fields_of_the_lease_are_kept(self) -> None:
        """Labels and fields that we do not know survive a renewal."""
        store = Store()
        store.create(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "virtual-node", "namespace": "kube-system", "labels": {"a": "b"}},
                "spec": {
                    "holderIdentity": "",
                    "leaseDurationSeconds": 1,
                    "acquireTime": "2026-01-02T03:04:05.000000Z",
                    "renewTime": "2026-01-02T03:04:05.000000Z",
                    "leaseTransitions": 4,
                    "strategy": "x",
                },
            }
        )
        work = Work()
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
        assert store.lease is not None
        assert store.lease["metadata"]["labels"] == {"a": "b"}
        assert (store.spec["strategy"], store.spec["leaseTransitions"]) == ("x", 5)

    async def test_lease_without_a_spec_is_free(self) -> None:
        """A Lease that somebody made empty is taken."""
        store, work = Store(), Work()
        store.lease = {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": "virtual-node", "namespace": "kube-system", "resourceVersion": "0"},
        }
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
            assert store.holder == "a"

    async def test_work_that_ends_gives_the_lease_back(self) -> None:
        """When the work returns, so does run(), and the lease is free."""
        store = Store()

        async def short() -> None:
            await asyncio.sleep(5)

        await candidate(Client(store), short, "a").run()
        assert now() == pytest.approx(5)
        assert store.holder == ""

    async def test_work_that_fails_gives_the_lease_back(self) -> None:
        """When the work raises, run() raises the same, and the lease is free."""
        store = Store()

        async def broken() -> None:
            raise KeyError("bug")

        with pytest.raises(KeyError, match="bug"):
            await candidate(Client(store), broken, "a").run()
        assert store.holder == ""


class TestSuccession:
    """A second candidate."""

    async def test_release_hands_over_within_a_retry_period(self) -> None:
        """A leader that ends cleanly releases the lease after its work has stopped; the other leads in under 3 s."""
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

    async def test_released_lease_says_so(self) -> None:
        """A released lease has no holder and a duration of one second, as client-go leaves it."""
        store, work = Store(), Work()
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
        assert (store.holder, store.spec["leaseDurationSeconds"]) == ("", 1)

    async def test_release_can_be_declined(self) -> None:
        """Without release_on_cancel the lease runs out by itself."""
        store, work = Store(), Work()
        async with standing(candidate(Client(store), work, "a", release_on_cancel=False)):
            await work.begun.wait()
        assert store.holder == "a"

    async def test_dead_leader_is_succeeded_after_the_lease_as_seen(self) -> None:
        """A candidate waits the whole duration from its own first sight, whatever the holder's clock says."""
        store, work = Store(), Work()
        store.create(
            {
                "apiVersion": "coordination.k8s.io/v1",
                "kind": "Lease",
                "metadata": {"name": "virtual-node", "namespace": "kube-system"},
                "spec": {
                    "holderIdentity": "dead",
                    "leaseDurationSeconds": 15,
                    "acquireTime": "1999-01-01T00:00:00.000000Z",
                    "renewTime": "1999-01-01T00:00:00.000000Z",
                },
            }
        )
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
        assert 15 <= work.started[0] <= 15 + 2 * 1.2

    async def test_deleted_lease_is_not_taken_from_a_live_leader(self) -> None:
        """Somebody deleting the Lease does not make a second leader: the first writes it anew."""
        store = Store()
        mine, first, second = Client(store), Work(), Work()
        async with standing(candidate(mine, first, "a")):
            await first.begun.wait()
            async with standing(candidate(Client(store), second, "b")):
                await asyncio.sleep(5)
                mine.network = refusing
                store.delete()
                await asyncio.sleep(7)  # the other looks at least twice
                assert store.lease is None
                mine.network = direct
                await asyncio.sleep(20)
                assert store.holder == "a"
                assert (first.active, second.active) == (1, 0)

    async def test_lease_is_renewed_while_the_work_stops(self) -> None:
        """Work that takes long to stop keeps the lease until it has stopped."""
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

    async def test_leader_that_lost_stands_again(self) -> None:
        """When the server is back, a candidate that lost the lease leads again in its turn."""
        client, work = Client(Store()), Work()
        async with standing(candidate(client, work, "a")):
            await work.begun.wait()
            client.network = refusing
            await work.ended.wait()
            client.network = direct
            work.begun.clear()
            await work.begun.wait()
        assert len(work.started) == 2

    async def test_short_trouble_is_survived(self) -> None:
        """Up to the renew deadline a leader goes on working without its server.

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
        """A leader that finds another's name in the lease stops at its next renewal."""
        store, work = Store(), Work()
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
            stolen = store.get()
            stolen["spec"]["holderIdentity"] = "thief"
            store.update(stolen)
            await work.ended.wait()
            assert work.stopped[0] <= 2 * 1.2

    @pytest.mark.looptime(start=EARLY)
    async def test_work_that_is_told_to_stop_for_want_of_renewal_does_not_lead(self) -> None:
        """is_leader is false when the work is cancelled, even where the timer of the deadline came a hair early."""
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

    async def test_work_that_is_told_to_stop_because_of_a_thief_does_not_lead(self) -> None:
        """is_leader is false from the moment a stolen lease is noticed, while the work is still stopping."""
        store, seen = Store(), []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append(elector.is_leader)

        elector = candidate(Client(store), work, "a")
        async with standing(elector):
            await asyncio.sleep(1)
            stolen = store.get()
            stolen["spec"]["holderIdentity"] = "thief"
            store.update(stolen)
            await asyncio.sleep(3)
        assert seen == [False]

    async def test_is_leader_is_right_even_before_the_work_is_cancelled(self) -> None:
        """is_leader follows the clock: after a stall of the process it is false before anything else ran."""
        client, work = Client(Store()), Work()
        elector = candidate(client, work, "a")
        async with standing(elector):
            await work.begun.wait()
            assert elector._renewed_at is not None
            elector._renewed_at -= 10.1
            assert not elector.is_leader

    async def test_work_that_will_not_stop_is_waited_for(self) -> None:
        """Work that ignores its end is reported, and never run twice."""
        client, work = Client(Store()), Work(cleanup=60)
        async with standing(candidate(client, work, "a")):
            await work.begun.wait()
            client.network = refusing
            with capture_logs() as logs:
                await work.ended.wait()
            client.network = direct
            assert work.active == 0
        assert "work does not stop; waiting for it" in [line["event"] for line in logs]

    async def test_failure_of_stopping_work_is_logged(self) -> None:
        """An error in the work's cleanup is told and does not end the candidacy."""
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
        """A renewal that was applied but whose answer nobody awaited does not keep the lease from being released."""
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

    async def test_failing_release_does_not_hold_the_end_up(self) -> None:
        """When the server is away at the end, run() ends all the same, within half the renew deadline."""
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
    async def test_any_error_is_a_reason_to_try_again(self, error: Exception) -> None:
        """Whatever goes wrong is told once and tried again, quietly, until it works."""
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


class Chaos:
    """A network with delays, losses before and after the server acted, and answers that come too late."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bad_until = 0.0
        self.on = True
        self._in_flight: set[asyncio.Task[dict[str, Any]]] = set()

    async def __call__(self, request: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Deliver a request, perhaps. The server acts even when the client has stopped waiting."""
        if not self.on:
            return request()
        if now() > self.bad_until and self.random.random() < 0.05:
            self.bad_until = now() + self.random.uniform(1, 40)
        bad = now() < self.bad_until
        there = self.random.choice([0.01, 0.2, 3, 12, 30]) if bad else self.random.uniform(0, 0.1)
        back = self.random.choice([0.01, 1, 6]) if bad else self.random.uniform(0, 0.1)
        lost = self.random.random() if bad else 1.0
        if lost < 0.2:
            raise ConnectionFailed("refused")

        async def serve() -> dict[str, Any]:
            await asyncio.sleep(there)
            answer = request()
            await asyncio.sleep(back)
            if lost < 0.4:
                raise ConnectionFailed("reset")
            return answer

        task = asyncio.create_task(serve())
        self._in_flight.add(task)
        task.add_done_callback(self._landed)
        return await asyncio.shield(task)

    def _landed(self, task: asyncio.Task[dict[str, Any]]) -> None:
        self._in_flight.discard(task)
        if not task.cancelled():
            task.exception()

    async def settle(self) -> None:
        """Wait for what is still on its way."""
        await asyncio.gather(*self._in_flight, return_exceptions=True)


class TestSafety:
    """The promise: never two at once."""

    @pytest.mark.parametrize("seed", range(12))
    async def test_never_two_leaders_and_always_one_in_the_end(self, seed: int) -> None:
        """Three candidates in ten bad minutes, dying and returning: never two work, and one does when it is over."""
        store = Store()
        dice = random.Random(seed)
        works: list[Work] = []
        chaos: list[Chaos] = []
        seen: list[int] = []

        def watched() -> Work:
            work = Work(dice.uniform(0, 4.9), seen)
            works.append(work)
            return work

        async def live(identity: str) -> None:
            """A process that is restarted, sometimes without a goodbye."""
            client = Client(store)
            client.network = Chaos(dice.randrange(1 << 30))
            chaos.append(client.network)
            generation = 0
            while True:
                generation += 1
                elector = candidate(
                    client, watched(), f"{identity}-{generation}", release_on_cancel=dice.random() < 0.7
                )
                task = asyncio.create_task(elector.run())
                try:
                    await asyncio.sleep(dice.uniform(20, 200))
                finally:
                    task.cancel()
                    await asyncio.gather(task, return_exceptions=True)

        tasks = [asyncio.create_task(live(name)) for name in "abc"]
        await asyncio.sleep(600)
        for network in chaos:
            network.on = False
        for network in chaos:
            await network.settle()
        start = now()
        while not any(work.active for work in works):
            await asyncio.sleep(0.1)
            assert now() < start + 40, "nobody leads although all is well"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert max(itertools.accumulate(seen)) == 1
        assert sum(len(work.started) for work in works) > 3


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"lease_duration": 10.0, "renew_deadline": 10.0},
            "lease_duration must be greater than renew_deadline",
        ),
        (
            {"renew_deadline": 2.4, "retry_period": 2.0},
            "renew_deadline must be greater than 1.2 × retry_period",
        ),
        ({"retry_period": 0.0}, "retry_period must be greater than 0"),
        (
            {"lease_duration": 0.5, "renew_deadline": 0.2, "retry_period": 0.1},
            "lease_duration must be at least 1 s",
        ),
        ({"identity": ""}, "identity is empty"),
    ],
)
async def test_settings_that_cannot_work_are_refused(options: dict[str, Any], text: str) -> None:
    """Durations that would allow two leaders, or none, are refused by name."""
    settings = {"identity": "a", **options}
    with pytest.raises(ValueError, match=text):
        LeaderElector(Client(Store()), namespace="n", name="x", on_started=Work(), **settings)

"""One candidate leads, and holds its Lease as client-go does."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import REGISTRY

from controller_runtime.leaderelection import LeaderElector
from tests.unit.controller_runtime.leaderelection.election import (
    Client,
    Store,
    Work,
    candidate,
    lease,
    now,
    standing,
)

pytestmark = pytest.mark.looptime


class TestLeading:
    """One candidate."""

    async def test_lone_candidate_leads_at_once(self) -> None:
        """It creates the Lease, with every field that client-go reads."""
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
        """A leader writes its Lease every retry period without reading it."""
        client, work = Client(Store()), Work()
        async with standing(candidate(client, work, "a")):
            await asyncio.sleep(60)
            assert work.active == 1
        assert [verb for verb, *_ in client.calls[:2]] == ["get", "create"]
        assert {verb for verb, *_ in client.calls[2:]} == {"update"}
        assert 25 <= len(client.calls) <= 33

    async def test_metric_shows_the_leader(self) -> None:
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
        """Labels and unknown fields survive a renewal."""
        store = Store()
        store.create(
            "leases",
            lease(
                {"labels": {"a": "b"}},
                holderIdentity="",
                leaseDurationSeconds=1,
                leaseTransitions=4,
                strategy="x",
            ),
        )
        work = Work()
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
        assert store.lease is not None
        assert store.lease["metadata"]["labels"] == {"a": "b"}
        assert (store.spec["strategy"], store.spec["leaseTransitions"]) == ("x", 5)

    async def test_lease_without_a_spec_is_free(self) -> None:
        store, work = Store(), Work()
        store.put("leases", {"metadata": lease()["metadata"]})
        async with standing(candidate(Client(store), work, "a")):
            await work.begun.wait()
            assert store.holder == "a"

    async def test_lease_is_released_when_the_work_returns(self) -> None:
        """And run() returns."""
        store = Store()

        async def short() -> None:
            await asyncio.sleep(5)

        await candidate(Client(store), short, "a").run()
        assert now() == pytest.approx(5)
        assert store.holder == ""

    async def test_lease_is_released_when_the_work_fails(self) -> None:
        """And run() raises the same error."""
        store = Store()

        async def broken() -> None:
            raise KeyError("bug")

        with pytest.raises(KeyError, match="bug"):
            await candidate(Client(store), broken, "a").run()
        assert store.holder == ""


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
    ],
)
async def test_impossible_settings_are_refused(options: dict[str, Any], text: str) -> None:
    """Durations that would allow two leaders, or none, are refused by name."""
    settings = {"identity": "a", **options}
    with pytest.raises(ValueError, match=text):
        LeaderElector(Client(Store()), namespace="n", name="x", on_started=Work(), **settings)

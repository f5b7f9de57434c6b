"""Re-creation of bare pods: no pod is lost or duplicated by crashes, races and refusals."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random
from typing import Any

import pytest

from controller_runtime.errors import BadRequest, ConnectionFailed, Forbidden
from descheduler.moving import record as records
from tests.thorough import seeds
from tests.unit.descheduler.bodies import pod
from tests.unit.descheduler.cluster import Cluster
from tests.unit.descheduler.refusing_clusters import cluster_with, process_on

pytestmark = pytest.mark.looptime

KEY = b"k" * 32
WRITES = [
    "create secrets",
    "patch configmaps",
    "create configmaps",
    "create controllerrevisions",
    "delete pods",
    "create pods",
    "delete controllerrevisions",
]
"""The writes of the first move of a bare pod: key, round, record, pod, record."""


def records_of(cluster: Cluster) -> list[dict[str, Any]]:
    """Return the stored records."""
    return cluster.all("controllerrevisions")


def is_replaced(cluster: Cluster) -> bool:
    """Report whether the only pod is a replacement and no record is left."""
    found = cluster.all("pods")
    return (
        len(found) == 1
        and "virtual-node.io/replaces" in (found[0]["metadata"].get("annotations") or {})
        and not records_of(cluster)
    )


async def test_move_makes_exactly_these_writes():
    cluster = cluster_with(pod())
    process = process_on(cluster)
    async with process.running():
        await asyncio.sleep(60)
    assert process.client.writes == WRITES
    assert is_replaced(cluster)
    assert process.reasons() == ["Rescheduled"]


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(len(WRITES)))
async def test_next_process_completes_move_after_crash_at_any_write(number, is_done):
    cluster = cluster_with(pod())
    first = process_on(cluster)
    await first.run_until(lambda _what: len(first.client.writes) == number + is_done, is_done=is_done)
    await asyncio.sleep(5)
    second = process_on(cluster)
    async with second.running():
        await asyncio.sleep(600)
    assert is_replaced(cluster)
    assert len(cluster.created) == 2


@pytest.mark.parametrize("seed", seeds(5, 20))
async def test_repeated_crashes_lose_and_duplicate_no_pod(seed):
    random = Random(seed)
    every = {f"p{number}" for number in range(5)}
    cluster = cluster_with(*(pod(name) for name in sorted(every)))

    def known_names() -> set[str]:
        """Return names of pods that exist or are recorded."""
        written = {found["data"]["record"]["pod_name"] for found in records_of(cluster)}
        return written | {found["metadata"]["name"] for found in cluster.all("pods")}

    for _ in range(8):
        process = process_on(cluster)
        left = random.randrange(1, 14)
        crashed = asyncio.Event()

        async def count(what: str, crashed: asyncio.Event = crashed) -> None:
            nonlocal left
            assert known_names() == every
            left -= 1
            if left <= 0:
                crashed.set()
                await asyncio.Event().wait()

        if random.random() < 0.5:
            process.client.before = count
        else:
            process.client.after = count
        async with process.running():
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(crashed.wait(), 100)
        assert known_names() == every
        await asyncio.sleep(random.choice([0.1, 5, 100]))
    async with process_on(cluster).running():
        await asyncio.sleep(10_000)
    assert not records_of(cluster)
    found = cluster.all("pods")
    assert sorted(each["metadata"]["name"] for each in found) == sorted(every)
    assert all("virtual-node.io/replaces" in each["metadata"]["annotations"] for each in found)
    assert len(cluster.created) == 10


async def test_delayed_deletion_does_not_delete_changed_pod():
    cluster = cluster_with(pod())
    first = process_on(cluster)
    await first.run_until(lambda what: what == "delete pods")
    started = {"phase": "Running", "conditions": [{"type": "PodScheduled", "status": "True"}]}
    cluster.replace("pods", "default/p", status=started)
    second = process_on(cluster)
    async with second.running():
        await asyncio.sleep(60)
    assert "delete pods" not in second.client.writes
    assert not records_of(cluster)
    assert len(cluster.created) == 1


async def test_pod_deleted_by_user_first_is_not_recreated():
    cluster = cluster_with(pod())
    process = process_on(cluster)

    async def delete(what: str) -> None:
        if what == "delete pods":
            cluster.remove("pods", "default/p")

    process.client.before = delete
    async with process.running():
        await asyncio.sleep(60)
    assert not cluster.all("pods")
    assert not records_of(cluster)


async def test_keeps_pod_that_another_client_created_with_the_name():
    cluster = cluster_with(pod())
    process = process_on(cluster)
    other: dict[str, Any] = pod(refused_at=None, phase="Running")

    async def take(what: str) -> None:
        if what == "create pods":
            cluster.put("pods", other)

    process.client.before = take
    async with process.running():
        await asyncio.sleep(60)
    (found,) = cluster.all("pods")
    assert "annotations" not in found["metadata"]
    assert not records_of(cluster)


async def test_retries_creation_until_quota_allows_it():
    cluster = cluster_with(pod())
    process = process_on(cluster)
    refusals = 3

    async def refuse(what: str) -> None:
        nonlocal refusals
        if what == "create pods" and refusals:
            refusals -= 1
            raise Forbidden("exceeded quota", code=403)

    process.client.before = refuse
    async with process.running():
        await asyncio.sleep(60)
    assert is_replaced(cluster)
    assert process.reasons() == ["RescheduleDelayed"] * 3 + ["Rescheduled"]


async def test_keeps_pod_if_admission_would_refuse_replacement():
    cluster = cluster_with(pod())
    process = process_on(cluster)
    original = process.client.create

    async def create(resource: Any, body: Any, *, params: Any = None, **options: Any) -> Any:
        if params:
            raise Forbidden("not like this", code=403)
        return await original(resource, body, params=params, **options)

    process.client.create = create  # type: ignore[method-assign]
    async with process.running():
        await asyncio.sleep(60)
    assert process.client.writes == ["create secrets"]
    assert process.reasons() == ["NotRescheduled"]


@pytest.mark.parametrize(
    "error",
    [
        Forbidden("pods is forbidden: exceeded quota: q, requested: pods=1", code=403),
        BadRequest("admission webhook x does not support dry run", code=400),
    ],
    ids=["quota", "no dry run"],
)
async def test_moves_pod_despite_inconclusive_rehearsal(error):
    """The old pod uses the quota itself, or an admission webhook does not support dry run."""
    cluster = cluster_with(pod())
    process = process_on(cluster)
    original = process.client.create

    async def create(resource: Any, body: Any, *, params: Any = None, **options: Any) -> Any:
        if params:
            raise error
        return await original(resource, body, params=params, **options)

    process.client.create = create  # type: ignore[method-assign]
    async with process.running():
        await asyncio.sleep(60)
    assert is_replaced(cluster)


async def test_completes_record_once_if_response_to_its_creation_is_lost():
    cluster = cluster_with(pod())
    process = process_on(cluster)

    async def lose(what: str) -> None:
        if what == "create controllerrevisions":
            process.client.after = None
            raise ConnectionFailed("reset")

    process.client.after = lose
    async with process.running():
        await asyncio.sleep(300)
    assert is_replaced(cluster)
    assert len(cluster.created) == 2


def record_of(replacement, *, force):
    """Return the record of pod p with uid old in resourceVersion 7."""
    return records.Record(
        namespace="ns", namespace_uid="u", pod_name="p", old_uid="old", old_version="7", node="a", reason="why",
        force=force, replacement=replacement,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "force", "step"),
    [
        ({"uid": "old", "resourceVersion": "7"}, False, records.Step.DELETE),
        ({"uid": "old", "resourceVersion": "8"}, False, records.Step.WITHDRAW),
        ({"uid": "old", "resourceVersion": "8", "deletionTimestamp": "t"}, False, records.Step.WAIT),
        ({"uid": "old", "resourceVersion": "8", "deletionTimestamp": "t"}, True, records.Step.DELETE),
        (
            {"uid": "old", "resourceVersion": "8", "deletionTimestamp": "t", "deletionGracePeriodSeconds": 0},
            True,
            records.Step.WAIT,
        ),
        ({"uid": "new", "resourceVersion": "9"}, False, records.Step.DONE),
        (None, False, records.Step.CREATE),
    ],
)
def test_next_step_depends_on_record_and_pod(metadata, force, step):
    record = record_of({}, force=force)
    assert records.next_step(record, metadata and {"metadata": metadata}) is step


def test_parse_reads_rendered_record():
    replacement = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "main"}]}}
    record = record_of(replacement, force=True)
    assert records.parse(records.render(record, namespace="own", key=KEY), records.Record, key=KEY) == record

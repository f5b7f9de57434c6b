"""Bare pods whose deletion is forbidden."""

from __future__ import annotations

import asyncio

import pytest

from controller_runtime.errors import Forbidden
from tests.unit.descheduler.bodies import pod
from tests.unit.descheduler.moving.test_recreation import is_replaced, records_of
from tests.unit.descheduler.refusing_clusters import cluster_with, process_on

pytestmark = pytest.mark.looptime


async def test_forbidden_first_deletion_withdraws_record_and_keeps_pod():
    cluster = cluster_with(pod())
    process = process_on(cluster)

    tries = 0

    async def refuse(what: str) -> None:
        nonlocal tries
        if what == "delete pods":
            tries += 1
            raise Forbidden("denied by ValidatingAdmissionPolicy", code=403)

    process.client.before = refuse
    async with process.running():
        await asyncio.sleep(600)
    (found,) = cluster.all("pods")
    assert "annotations" not in found["metadata"]
    assert not records_of(cluster)
    assert tries == 1
    assert process.reasons() == ["NotRescheduled"]


async def test_forbidden_deletion_keeps_record_of_earlier_process():
    """An earlier deletion may still take effect, and then only the record restores the pod."""
    cluster = cluster_with(pod())
    first = process_on(cluster)

    async def refuse(what: str) -> None:
        if what == "delete pods":
            raise Forbidden("denied by ValidatingAdmissionPolicy", code=403)

    await first.run_until(lambda what: what == "delete pods")
    second = process_on(cluster)
    second.client.before = refuse
    async with second.running():
        await asyncio.sleep(60)
        assert records_of(cluster)
        second.client.before = None
        await asyncio.sleep(120)
    assert is_replaced(cluster)

"""The usage of a real node, from its kubelet, with the rights that only the multi-scheduler's account has."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller_runtime.auth import kubeconfig
from controller_runtime.client.client import Client
from controller_runtime.errors import Forbidden
from hack.sandbox import Sandbox
from multi_scheduler.rights import LOWER_KUBELETS
from multi_scheduler.usage.feed import Source
from multi_scheduler.usage.kubelets import Resource, Summary
from multi_scheduler.usage.metrics_api import MetricsApi
from multi_scheduler.usage.store import Sample
from tests.e2e.test_inspect import least
from tests.waiting import eventually

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def test_kubelets_report_usage_and_pressure() -> None:
    """Plausible values by both endpoints; pressure if the machine's kernel reports it."""
    async with Sandbox(lower=1, real_node=True) as sandbox:
        (lower,) = sandbox.lower
        assert sandbox.real_node is not None
        name = sandbox.real_node.name
        config = await kubeconfig.load(await least(lower, LOWER_KUBELETS), in_cluster=False)
        async with Client(config, cluster="lower1") as client:
            for source, has_pressure in ((Summary(client), True), (Resource(client), False)):
                sample = await _measured(source, name)
                assert 1 < (sample.cpu or 0) < 1_000_000
                assert 10 * 1024**2 < (sample.memory or 0) < 10 * 1024**4
                kernel = Path("/proc/pressure/memory").exists()
                assert (sample.pressure is not None) == (has_pressure and kernel)
            with pytest.raises(Forbidden):
                await _measured(MetricsApi(client), name)


async def _measured(source: Source, node: str) -> Sample:
    found: dict[str, Sample] = {}

    async def is_measured() -> bool:
        found.update({name: one async for name, one in source.read({node: 2000.0}, pause=0)})
        return node in found and bool(found[node].cpu)

    if isinstance(source, MetricsApi):
        await is_measured()
    else:
        await eventually(is_measured, what="the kubelet has measured its node")
    return found[node]

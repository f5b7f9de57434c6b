"""``services.clusterIP: same`` on real API servers: upper addresses in a lower cluster whose ServiceCIDR contains them."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.commands.demo import configuration
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import SIMULATED, pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready

pytestmark = pytest.mark.e2e
NODE = SIMULATED.replace("2", "1")
TAKEN = "10.96.77.77"
NAMESPACE = "shop"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(simulated: Lend) -> AsyncIterator[tuple[Sandbox, Path]]:
    """An upper and a lower cluster with different Service ranges, and the configuration of the process between them."""
    async with simulated(lower=1) as running:
        config = configuration(running)
        config["clusters"][0]["services"] = {"clusterIP": "same"}
        file = running.directory / "same.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        await running.start_virtual_node("--config", str(file))
        await node_ready(running.upper, NODE)
        await make_namespace(running.upper, NAMESPACE)
        await create(running.upper, NAMESPACE, pod("client", "sleep 600", node=NODE))
        await ready(running.upper, NAMESPACE, "client")
        yield running, file


def _service(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": [{"port": 80}], **spec},
    }


async def _addresses(upper: Cluster, lower: Cluster, name: str) -> tuple[str, str]:
    """Return a Service's address in both clusters, as soon as it has a copy."""
    found: list[str] = []

    async def there() -> bool:
        found[:] = [
            (await get(one, NAMESPACE, "service", name))["spec"]["clusterIP"] for one in (upper, lower)
        ]
        return True

    await eventually(there, what=f"service {name} in both clusters")
    return found[0], found[1]


async def _check(file: Path) -> dict[str, Any]:
    """Return the row about Service ranges of ``virtual-node check``."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", "check", "--config", str(file), "-o", "json",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    output, _ = await process.communicate()
    (row,) = [one for one in json.loads(output)["findings"] if one["check"] == "service range"]
    found: dict[str, Any] = row
    return found


async def test_new_copies_have_the_upper_address_if_the_lower_range_contains_it(
    clusters: tuple[Sandbox, Path],
):
    """Out of range, then with a ServiceCIDR in range, then taken; existing copies keep their addresses."""
    sandbox, file = clusters
    upper, lower = sandbox.upper, sandbox.lower[0]

    async def reported(name: str) -> list[str]:
        # Not the events of the API server, which may repair an allocation at the same time.
        ours = f"involvedObject.name={name},reason=OtherClusterIP"
        events = await get(upper, NAMESPACE, "events", fields=ours)
        return [one["message"].partition("instead of ")[2] for one in events["items"]]

    row = await _check(file)
    assert not row["ok"]
    assert row["detail"] == f"{lower.service_cidr} does not contain {upper.service_cidr} of the upper cluster"
    await create(upper, NAMESPACE, _service("apart"))
    upper_addresses, lower_addresses = await _addresses(upper, lower, "apart")
    assert upper_addresses != lower_addresses
    await becomes(
        lambda: reported("apart"),
        [f"{upper_addresses}: out of range (services.clusterIP: same)"],
        what="the event",
    )

    cidr = {"metadata": {"name": "upper"}, "spec": {"cidrs": [upper.service_cidr]}}
    await lower.apply({"apiVersion": "networking.k8s.io/v1", "kind": "ServiceCIDR", **cidr})

    async def contained() -> tuple[bool, str]:
        row = await _check(file)
        return row["ok"], row["detail"]

    async def assigned() -> bool:
        await create(lower, "default", _service("probe", clusterIP=upper_addresses))
        return True

    await becomes(
        contained, (True, f"contains {upper.service_cidr}"), what="check finds the range of the ServiceCIDR"
    )
    await eventually(assigned, what="the API server assigns addresses of the range")
    await create(upper, NAMESPACE, _service("equal"))
    upper_addresses, lower_addresses = await _addresses(upper, lower, "equal")
    assert upper_addresses == lower_addresses
    await create(lower, "default", _service("other", clusterIP=TAKEN))
    await create(upper, NAMESPACE, _service("taken", clusterIP=TAKEN))
    upper_addresses, lower_addresses = await _addresses(upper, lower, "taken")
    assert upper_addresses == TAKEN != lower_addresses
    await becomes(
        lambda: reported("taken"),
        [f"{TAKEN}: already allocated (services.clusterIP: same)"],
        what="the event",
    )
    assert await reported("equal") == []
    assert (await _addresses(upper, lower, "apart"))[1].startswith("10.97.")

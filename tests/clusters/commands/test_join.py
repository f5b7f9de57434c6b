"""`lower-cluster join` and `leave` with the real helm, on real clusters, over one installation of the chart."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds import binaries
from hack.sandbox.command import Completed, command
from hack.sandbox.commands import helm as charts
from hack.sandbox.commands.helm import NAMESPACE, RELEASE, helm
from tests.clusters.chart.installation import names, read
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, make_namespace, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node, pytest.mark.timeout(480)]


VALUES: dict[str, Any] = {
    "virtualNode": {"replicas": 1},
    "webhook": {"enabled": False},
    "descheduler": {"enabled": False},
    "multiScheduler": {"enabled": False},
}
"""Values of the chart that join requires: each container takes its time to start here."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(tmp_path_factory: pytest.TempPathFactory, image: Path) -> AsyncIterator[Sandbox]:
    """The chart without clusters on a real upper node, and a simulated lower cluster."""
    if os.geteuid() != 0:
        pytest.skip("containers on a real node need root")
    directory = tmp_path_factory.mktemp("join") / "sandbox"
    async with Sandbox(lower=1, kwok_nodes=1, upper_real_node=True, directory=directory) as sandbox:
        await charts.load_images(sandbox, image)
        await helm(
            sandbox, "install", RELEASE, str(charts.CHART), f"--namespace={NAMESPACE}", "--create-namespace", "--wait",
            values=VALUES,
        )  # fmt: skip
        yield sandbox


async def _run(sandbox: Sandbox, action: str, *more: str, check: bool = True) -> Completed:
    program = (await binaries.ensure(["helm"]))["helm"]
    environment = {
        **os.environ,
        "PATH": f"{program.parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(sandbox.upper.kubeconfig),
    }
    lower = sandbox.lower[0]
    argv = [sys.executable, "-m", "virtual_node", "lower-cluster", action, lower.name, *more]
    return await command(
        [*argv, f"--client-kubeconfig={lower.kubeconfig}"], env=environment, check=check, timeout=400
    )


async def _state(sandbox: Sandbox) -> dict[str, list[str]]:
    """Return the objects in both clusters that join could have made, and the values of the release."""
    found = {
        cluster.name: names(await read(cluster, "-A", kinds))
        for cluster in sandbox.clusters
        for kinds in ["namespaces,nodes,serviceaccounts,clusterroles,clusterrolebindings,roles,rolebindings,csidrivers"]
    }  # fmt: skip
    secrets = names(await read(sandbox.upper, "-A", "secrets"))
    values = (await helm(sandbox, "get", "values", RELEASE, f"--namespace={NAMESPACE}", "-o", "json")).stdout
    return {
        **{name: sorted(one) for name, one in found.items()},
        "secrets": sorted(one for one in secrets if "sh.helm.release" not in one),
        "values": [json.dumps(json.loads(values) or {})],
    }


async def _revision(sandbox: Sandbox) -> int:
    listed = json.loads((await helm(sandbox, "list", f"--namespace={NAMESPACE}", "-o", "json")).stdout)
    return int(listed[0]["revision"])


async def _node(upper: Cluster, name: str) -> dict[str, Any]:
    return await read(upper, "node", name)


async def test_join_and_leave_are_repeatable_and_leave_nothing(installed: Sandbox):
    """A dry run changes nothing. Join proves the node, and a second join changes nothing. Leave restores the earlier state."""
    upper, lower = installed.upper, installed.lower[0]
    before = await _state(installed)

    rehearsal = await _run(installed, "join", "--dry-run")
    assert "would create Namespace virtual-node" in rehearsal.stdout
    assert await _state(installed) == before
    assert await _revision(installed) == 1

    joined = await _run(installed, "join")
    assert f"a pod ran on {lower.name}" in joined.stdout, joined.stdout
    assert await _revision(installed) == 2
    after = await _state(installed)
    assert f"Secret/virtual-node-{lower.name}-viewer" in after["secrets"]
    assert not [one for one in after["upper"] + after[lower.name] if "probe" in one]
    node = await _node(upper, lower.name)
    assert node["metadata"]["labels"]["clusterID"] == lower.name

    again = await _run(installed, "join")
    assert "has its rights" in again.stdout
    assert "has a valid token" in again.stdout
    assert await _revision(installed) == 2
    assert await _state(installed) == after

    await make_namespace(upper, "busy")
    await create(upper, "busy", pod("web", "sleep 3600", node=lower.name))
    await ready(upper, "busy", "web")
    refused = await _run(installed, "leave", check=False)
    assert refused.returncode == 2
    assert "pod busy/web" in refused.stderr
    assert "unschedulable" not in (await _node(upper, lower.name))["spec"]
    await upper.kubectl("delete", "namespace", "busy", "--wait")
    await becomes(lambda: _state(installed), after, what="the pod's namespace is gone in both clusters")

    rehearsal = await _run(installed, "leave", "--dry-run")
    assert "would leave" in rehearsal.stdout
    assert await _state(installed) == after

    left = await _run(installed, "leave")
    assert await _revision(installed) == 3, left.stdout
    await becomes(lambda: _state(installed), before, what="both clusters are as before")
    assert "nothing to do" in (await _run(installed, "leave")).stdout

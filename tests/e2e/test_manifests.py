"""hack/*.yaml on a real API server: all of it is accepted, pods may run, and deleting leaves nothing."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.chart.manifests import files
from hack.chart.template import NAMESPACE
from hack.sandbox import Cluster, Sandbox
from tests.waiting import becomes

pytestmark = pytest.mark.e2e

FILES = sorted(files())
OURS = "app.kubernetes.io/part-of=virtual-node"
WHOLE = (
    "namespaces,clusterroles,clusterrolebindings,mutatingwebhookconfigurations,validatingwebhookconfigurations,"
    "priorityclasses"
)
NAMESPACED = "roles,rolebindings,serviceaccounts,configmaps,services,deployments,poddisruptionbudgets,pods"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def upper() -> AsyncIterator[Cluster]:
    """An upper cluster without nodes: what is made there waits for one."""
    async with Sandbox(lower=0, kwok_nodes=0) as sandbox:
        yield sandbox.upper


async def _items(cluster: Cluster, *arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((await cluster.kubectl("get", *arguments, "-o", "json")).stdout)[
        "items"
    ]
    return found


async def _names(cluster: Cluster) -> list[str]:
    found = await _items(cluster, WHOLE, "-l", OURS)
    found += await _items(cluster, NAMESPACED, "-A", "-l", OURS)
    return [f"{one['kind']}/{one['metadata']['name']}" for one in found]


async def _changed(cluster: Cluster, file: Path) -> list[str]:
    """What applying once more changes. kubectl replaces the selector of a budget each time, with the same."""
    again = await cluster.kubectl("apply", "-f", str(file))
    return [
        line
        for line in again.stdout.splitlines()
        if not line.endswith(" unchanged") and not line.startswith("poddisruptionbudget")
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_file_is_accepted_and_leaves_nothing(upper: Cluster, file: Path):
    """`kubectl apply -f` has no complaint, every Deployment gets its pods, `kubectl delete -f` removes it all."""
    # Without its namespace nothing can be tried; with --save-config apply does not wonder who made it.
    await upper.kubectl("create", "namespace", NAMESPACE, "--save-config")
    tried = await upper.kubectl("apply", "--dry-run=server", "-f", str(file))
    assert tried.stderr == ""
    assert await _names(upper) == []

    applied = await upper.kubectl("apply", "-f", str(file))
    assert applied.stderr == ""
    assert await _changed(upper, file) == []

    # Pod Security is enforced in the namespace: pods that are not restricted would never be made.
    deployments = await _items(upper, "deployments", "-n", NAMESPACE)
    wanted = sum(one["spec"]["replicas"] for one in deployments)
    assert wanted > 0

    async def pods() -> int:
        return len(await _items(upper, "pods", "-n", NAMESPACE))

    await becomes(pods, wanted, what="every Deployment's pods")

    await upper.kubectl("delete", "-f", str(file), "--timeout=150s")
    assert await _names(upper) == []


async def test_the_files_go_together(upper: Cluster):
    """All of them applied beside each other are one installation, and nothing of one is changed by another."""
    for file in FILES:
        await upper.kubectl("apply", "-f", str(file))
    for file in FILES:
        assert await _changed(upper, file) == []
    for file in FILES:
        await upper.kubectl("delete", "--ignore-not-found", "-f", str(file), "--timeout=150s")
    assert await _names(upper) == []

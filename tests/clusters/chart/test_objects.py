"""Objects that the chart creates and a program fills: Helm adopts those of earlier versions and keeps their data."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Sandbox
from hack.sandbox.commands.helm import CHART, NAMESPACE, RELEASE, helm
from tests.clusters.chart.installation import read
from tests.clusters.pool import Lend

pytestmark = pytest.mark.e2e

SECRET = f"{RELEASE}-virtual-node-webhook-tls"
DRIVER = "lower-cluster.virtual-node.io"
DRIVER_OBJECT = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "CSIDriver",
    "metadata": {"name": DRIVER},
    "spec": {"attachRequired": False, "podInfoOnMount": False},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def empty(alone: Lend) -> AsyncIterator[Sandbox]:
    """An upper cluster without nodes: pods of the release do not run, and its hooks are left out."""
    async with alone() as sandbox:
        await sandbox.upper.kubectl("create", "namespace", NAMESPACE)
        yield sandbox


async def _helm(sandbox: Sandbox, verb: str, *more: str) -> None:
    chart = [str(CHART)] if verb in {"install", "upgrade"} else []
    await helm(sandbox, verb, RELEASE, *chart, f"--namespace={NAMESPACE}", "--no-hooks", *more)


async def _fill(sandbox: Sandbox, value: str) -> None:
    patch = f'{{"stringData": {{"ca.key": "{value}"}}}}'
    await sandbox.upper.kubectl("-n", NAMESPACE, "patch", "secret", SECRET, "-p", patch)


async def _secret(sandbox: Sandbox) -> dict[str, Any]:
    return await read(sandbox.upper, "-n", NAMESPACE, "secret", SECRET)


async def test_adopts_objects_that_a_program_made(empty: Sandbox):
    """In earlier versions the programs created them: the first and later upgrades succeed without changing them."""
    upper = empty.upper
    await upper.kubectl("-n", NAMESPACE, "create", "secret", "generic", SECRET, "--from-literal=ca.key=old")
    await upper.apply(DRIVER_OBJECT)
    before = [await _secret(empty), await read(upper, "csidriver", DRIVER)]
    await _helm(empty, "install")
    await _helm(empty, "upgrade")
    assert [await _secret(empty), await read(upper, "csidriver", DRIVER)] == before
    await _helm(empty, "uninstall")
    await upper.kubectl("-n", NAMESPACE, "delete", "secret", SECRET)
    await upper.kubectl("delete", "csidriver", DRIVER)


async def test_upgrades_keep_the_webhooks_certificates(empty: Sandbox):
    """The chart creates the Secret without data, and no upgrade or rollback removes the data; uninstall does."""
    await _helm(empty, "install")
    assert "data" not in await _secret(empty)
    await _fill(empty, "made")
    before = await _secret(empty)
    await _helm(empty, "upgrade", "--set=log.level=debug", "--set=commonLabels.a=b")
    await _helm(empty, "rollback")
    after = await _secret(empty)
    assert (after["data"], after["metadata"]["uid"]) == (before["data"], before["metadata"]["uid"])
    await _helm(empty, "uninstall")
    left = await read(empty.upper, "-n", NAMESPACE, "secrets")
    assert [one["metadata"]["name"] for one in left["items"]] == []
    # Bound mirrors of volumes need the CSIDriver. The uninstall hook, which does not run here, would remove it last.
    assert (await read(empty.upper, "csidriver", DRIVER))["spec"]["attachRequired"] is False


async def test_adopts_its_kept_csi_driver_again(empty: Sandbox):
    """An earlier uninstall of the same release has kept it."""
    await _helm(empty, "install")
    await _helm(empty, "uninstall")
    await empty.upper.kubectl("delete", "csidriver", DRIVER)

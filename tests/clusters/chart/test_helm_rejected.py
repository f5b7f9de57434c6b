"""A release with a configuration that the program rejects: replicas wait and report why, and Helm can correct it.

The tests of this file form one sequence, in order over one sandbox, because an installation is expensive.
"""

from __future__ import annotations

import copy
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.command import command
from hack.sandbox.commands import helm as charts
from hack.sandbox.commands.helm import NAMESPACE, RELEASE, helm
from tests.clusters.chart.installation import left_above, read
from tests.waiting import eventually, node_ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

NODE = "lower1"
RUNNING = "app.kubernetes.io/component=virtual-node"
TOLD = "unknown field `lables`, did you mean labels?"
REFUSED = "at '/virtualNode/clusters/0/config': additional properties 'lables' not allowed"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(tmp_path_factory: pytest.TempPathFactory, image: Path) -> AsyncIterator[Sandbox]:
    """An upper cluster with a real node and two replicas of the virtual node, over a simulated lower cluster."""
    if os.geteuid() != 0:
        pytest.skip("containers on a real node need root")
    directory = tmp_path_factory.mktemp("rejected") / "sandbox"
    async with Sandbox(lower=1, upper_real_node=True, kwok_nodes=1, directory=directory) as sandbox:
        await charts.load_images(sandbox, image)
        await sandbox.upper.kubectl("create", "namespace", NAMESPACE)
        await charts.register(sandbox, sandbox.lower[0])
        await _helm(sandbox, "install", "--wait", values=_good(sandbox))
        await node_ready(sandbox.upper, NODE)
        yield sandbox


def _good(sandbox: Sandbox) -> dict[str, Any]:
    others = {name: {"enabled": False} for name in ("webhook", "descheduler", "multiScheduler")}
    return charts.values(sandbox, uninstall={"timeout": 40}, **others)


def _misspelt(sandbox: Sandbox) -> dict[str, Any]:
    wrong = copy.deepcopy(_good(sandbox))
    wrong["virtualNode"]["clusters"][0]["config"] = {"lables": {"zone": "a"}}
    return wrong


async def _helm(sandbox: Sandbox, verb: str, *more: str, values: dict[str, Any]) -> None:
    await helm(
        sandbox, verb, RELEASE, str(charts.CHART), f"--namespace={NAMESPACE}", "--timeout=180s", *more,
        values=values,
    )  # fmt: skip


async def _rollback(sandbox: Sandbox, revision: int, *more: str) -> None:
    await helm(
        sandbox, "rollback", RELEASE, str(revision), f"--namespace={NAMESPACE}", "--timeout=180s", *more
    )


async def _pods(upper: Cluster) -> dict[str, dict[str, Any]]:
    """Return pods of the virtual node that are not ending, by name."""
    listed = await read(upper, "-n", NAMESPACE, "pods", "-l", RUNNING)
    return {
        one["metadata"]["name"]: one
        for one in listed["items"]
        if not one["metadata"].get("deletionTimestamp")
    }


def _ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions") or ()
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


async def _event(upper: Cluster, pod: str, reason: str, message: str = "") -> None:
    """Wait for an event of a pod."""

    async def is_reported() -> bool:
        selector = f"--field-selector=reason={reason},involvedObject.name={pod}"
        events = await read(upper, "-n", NAMESPACE, "events", selector)
        return any(message in one["message"] for one in events["items"])

    await eventually(is_reported, what=f"event {reason} of pod {pod}")


async def _waiting(upper: Cluster, pod: str) -> None:
    """Wait until a pod runs and waits, and check every report of the reason."""

    async def is_waiting() -> bool:
        status = (await _pods(upper))[pod]["status"]
        return bool(status["phase"] == "Running" and (status["containerStatuses"][0].get("started")))

    await eventually(is_waiting, what=f"pod {pod} runs")
    await _event(upper, pod, "ConfigurationRejected", TOLD)
    found = (await _pods(upper))[pod]
    assert not _ready(found)
    assert found["status"]["containerStatuses"][0]["restartCount"] == 0
    server = f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}:9090/proxy"
    metrics = (await upper.kubectl("get", "--raw", f"{server}/metrics")).stdout
    assert "virtual_node_config_rejected 1.0" in metrics
    log = (await upper.kubectl("-n", NAMESPACE, "logs", pod)).stdout
    (line,) = (json.loads(one) for one in log.splitlines() if "configuration not applied" in one)
    assert TOLD in line["error"]
    assert "/etc/virtual-node/config/virtual-node.yaml" in line["error"]


async def _replaced(upper: Cluster, *pods: str) -> list[str]:
    """Delete pods; return the names of their successors."""
    before = set(await _pods(upper))
    await upper.kubectl("-n", NAMESPACE, "delete", "pod", *pods, "--wait=false")

    async def came() -> bool:
        return len(set(await _pods(upper)) - before) == len(pods)

    await eventually(came, what="successors of deleted pods")
    return sorted(set(await _pods(upper)) - before)


async def _all_ready(upper: Cluster) -> None:
    async def are_ready() -> bool:
        found = await _pods(upper)
        return len(found) == 2 and all(map(_ready, found.values()))

    await eventually(are_ready, what="both replicas ready")


async def test_helm_refuses_a_misspelt_field(installed: Sandbox):
    """Before anything is changed, with the path."""
    done = await helm(
        installed, "upgrade", RELEASE, str(charts.CHART), f"--namespace={NAMESPACE}",
        values=_misspelt(installed), check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert REFUSED in done.stderr
    assert (
        len(
            json.loads(
                (await helm(installed, "history", RELEASE, f"--namespace={NAMESPACE}", "-ojson")).stdout
            )
        )
        == 1
    )


async def test_running_replicas_report_a_rejected_configuration(installed: Sandbox):
    """It passes the schema. Leader and standby continue; a successor waits, not ready."""
    upper = installed.upper
    before = await _pods(upper)
    await _helm(installed, "upgrade", "--skip-schema-validation", values=_misspelt(installed))
    for pod in before:
        await _event(upper, pod, "ConfigurationRejected", TOLD)
    after = await _pods(upper)
    assert set(after) == set(before)
    assert all(map(_ready, after.values()))
    await node_ready(upper, NODE)
    for pod in await _replaced(upper, min(before)):
        await _waiting(upper, pod)
    await node_ready(upper, NODE)


async def test_an_upgrade_corrects_a_rejected_configuration(installed: Sandbox):
    """The waiting replica becomes ready by itself, without a restart."""
    upper = installed.upper
    (waiting,) = (name for name, pod in (await _pods(upper)).items() if not _ready(pod))
    await _helm(installed, "upgrade", "--wait", values=_good(installed))
    await _all_ready(upper)
    found = (await _pods(upper))[waiting]
    assert found["status"]["containerStatuses"][0]["restartCount"] == 0
    await _event(upper, waiting, "ConfigurationApplied")


async def test_a_rollback_corrects_a_rejected_configuration(installed: Sandbox):
    """Though no working replica is left; the doctor reports why."""
    upper = installed.upper
    await _rollback(installed, 2)
    for pod in await _replaced(upper, *await _pods(upper)):
        await _waiting(upper, pod)
    arguments = [sys.executable, "-m", "virtual_node", "doctor", f"--kubeconfig={upper.kubeconfig}"]

    async def is_found() -> bool:
        found = await command(arguments, check=False)
        return found.returncode == 1 and TOLD in " ".join(found.stdout.split())

    await eventually(is_found, what="the doctor's word about the configuration")
    await _rollback(installed, 1, "--wait")
    await _all_ready(upper)
    await node_ready(upper, NODE)


async def test_a_release_with_a_rejected_configuration_is_uninstalled(installed: Sandbox):
    """The clean-up uses the valid part of the file, and leaves nothing."""
    upper = installed.upper
    await _rollback(installed, 2)
    for pod in await _replaced(upper, *await _pods(upper)):
        await _waiting(upper, pod)
    done = await helm(installed, "uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait", "--timeout=270s")
    output = done.stdout + done.stderr
    assert "configuration rejected" in output
    assert f"node {NODE} removed" in output
    # Except events of pods and the CSIDriver, as after any uninstallation.
    assert await left_above(upper) == []

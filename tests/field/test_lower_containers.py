"""Containers that admission of the lower cluster adds: the upper pod shows its own, and its phase and readiness are true."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from hack.sandbox import Cluster, Sandbox
from tests.clusters.virtual_nodes import pod
from tests.field.admission import admission_webhook
from tests.waiting import becomes, create, get, ready
from virtual_node.translate.pods.containers import debuggers_added_by, recorded_debuggers

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]
PROXY = {"name": "proxy", "image": "busybox:1.36", "command": ["sleep", "10000"]}
CRASHING = {**PROXY, "command": ["false"]}
# The kubelet starts the next container only if it sees the sidecar run, which takes a moment on a busy machine.
SIDECAR = {**PROXY, "command": ["sh", "-c", "sleep 3; exit 1"], "restartPolicy": "Always"}


def added(field: str, container: Mapping[str, Any], *, at: str = "-") -> list[dict[str, Any]]:
    """Return the patch that adds a container to the first position of a list of the pod, or to its end."""
    return [{"op": "add", "path": f"/spec/{field}/{at}", "value": dict(container)}]


def _injected(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the patch for a pod, by its name."""
    pair = [{"op": "add", "path": "/spec/initContainers", "value": []}]
    match body["metadata"]["name"]:
        case "first":
            return added("containers", PROXY, at="0")
        case "unready":
            return added("containers", CRASHING)
        case "native":
            return pair + added("initContainers", SIDECAR)
        case "blocked":
            return pair + added("initContainers", CRASHING)
        case "job":
            return added("containers", PROXY)
    return []


async def test_added_containers_are_not_counted(sandbox: Sandbox, upper: Cluster, namespace):
    """READY, STATUS and logs are those of the upper pod's containers; readiness includes all lower containers."""
    lower = sandbox.lower[0]
    async with admission_webhook(lower, namespace, patch=_injected):
        for name in ("first", "unready", "blocked"):
            await create(upper, namespace, pod(name, "echo hello; sleep 10000"))
        await create(upper, namespace, pod("native", "sleep 4; exit 0", restartPolicy="Never"))
        await create(upper, namespace, pod("job", "true", restartPolicy="Never"))

        async def rows() -> dict[str, str]:
            done = await upper.kubectl("-n", namespace, "get", "pods", "--no-headers")
            return {row[0]: " ".join(row[1:3]) for row in map(str.split, done.stdout.splitlines())}

        await becomes(
            rows,
            {
                "first": "1/1 Running",
                "unready": "1/1 Running",
                "blocked": "0/1 PodInitializing",
                "native": "0/1 Completed",
                "job": "0/1 Completed",
            },
            what="kubectl get pods",
        )
        await ready(upper, namespace, "first")

        async def status(name: str) -> dict[str, Any]:
            found: dict[str, Any] = (await get(upper, namespace, "pod", name))["status"]
            return found

        async def is_ready() -> tuple[str, bool]:
            conditions = {one["type"]: one for one in (await status("unready"))["conditions"]}
            return conditions["Ready"]["status"], "proxy" in conditions["Ready"].get("message", "")

        await becomes(is_ready, ("False", True), what="the pod with an unready added container is not ready")

        async def phase() -> str:
            return str((await status("native"))["phase"])

        await becomes(phase, "Succeeded", what="the pod with a crashing native sidecar finishes")
        native, job = await status("native"), await status("job")
        assert "initContainerStatuses" not in native
        assert (job["phase"], job["message"].split(":")[0]) == ("Running", "The pod finishes after proxy")
        done = await upper.kubectl("-n", namespace, "logs", "first", "--all-containers")
        assert done.stdout == "hello\n"
        done = await upper.kubectl("-n", namespace, "logs", "first", "-c", "proxy", check=False)
        assert "container proxy is not valid for pod first" in done.stderr
        await _add_debug_container(upper, namespace, "first", "proxy")
        done = await upper.kubectl("-n", namespace, "exec", "first", "-c", "proxy", "--", "id", check=False)
        assert 'container not found ("proxy")' in done.stderr
        for name in ("first", "unready", "native"):
            statuses = (await status(name))["containerStatuses"]
            assert [one["name"] for one in statuses] == ["main"]
    assert not any("may not be transitioned" in line for line in _log(sandbox))


async def test_a_debug_container_of_the_lower_cluster_is_out_of_reach(
    sandbox: Sandbox, upper: Cluster, namespace
):
    """Also under a name that the upper pod has, with no more rights than users have; their own containers are reached."""
    lower = sandbox.lower[0]
    await create(upper, namespace, pod("web", "sleep 10000"))
    await ready(upper, namespace, "web")
    await _add_debug_container(lower, namespace, "web", "shell")
    await _add_debug_container(upper, namespace, "web", "shell", "mine")

    async def states() -> list[str]:
        found = (await get(upper, namespace, "pod", "web"))["status"].get("ephemeralContainerStatuses") or ()
        return [one["name"] for one in found if "running" in one["state"]]

    await becomes(states, ["mine"], what="only the user's debug container has a status")
    options = ("get", "pod", "web", "-o", "json", "--show-managed-fields")
    below = json.loads((await lower.kubectl("-n", namespace, *options)).stdout)
    assert {one["name"] for one in below["spec"]["ephemeralContainers"]} == {"shell", "mine"}
    assert recorded_debuggers(below["metadata"]["annotations"]) == {"mine"}
    assert debuggers_added_by("virtual-node", below) == {"mine"}
    done = await upper.kubectl("-n", namespace, "exec", "web", "-c", "shell", "--", "id", check=False)
    assert 'container not found ("shell")' in done.stderr
    for verb in ("attach", "logs"):
        done = await upper.kubectl("-n", namespace, verb, "web", "-c", "shell", check=False)
        assert (done.returncode, done.stdout) == (1, "")
    done = await upper.kubectl("-n", namespace, "exec", "web", "-c", "mine", "--", "echo", "reached")
    assert done.stdout == "reached\n"

    async def events() -> str:
        return (await upper.kubectl("-n", namespace, "get", "events", "-o", "json")).stdout

    async def reported() -> bool:
        return "names that were added in the lower cluster: shell. Add" in await events()

    await becomes(reported, True, what="an event tells the user to choose another name")


async def _add_debug_container(cluster: Cluster, namespace: str, name: str, *wanted: str) -> None:
    """Add debug containers to a pod."""
    debug = {"image": "busybox:1.36", "command": ["sh", "-c", "echo secret; sleep 10000"]}
    patch = {"spec": {"ephemeralContainers": [{"name": one, **debug} for one in wanted]}}
    await cluster.kubectl(
        "-n", namespace, "patch", "pod", name, "--subresource=ephemeralcontainers", "-p", json.dumps(patch)
    )


def _log(sandbox: Sandbox) -> list[str]:
    return [
        line
        for file in sandbox.directory.rglob("virtual-node*.log")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]

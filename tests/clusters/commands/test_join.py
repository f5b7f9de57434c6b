"""`lower-cluster join` and `leave` with the real helm, on real clusters, over one installation of the chart.

Directly, and through a tunnel while the upper side can open no connection to the lower one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds import binaries, images
from hack.sandbox.command import Completed, command
from hack.sandbox.commands import helm as charts
from hack.sandbox.commands.helm import NAMESPACE, RELEASE, helm
from hack.sandbox.errors import SandboxError
from hack.sandbox.nodes.network import connect
from hack.sandbox.nodes.network import run as run_command
from tests.clusters.chart.installation import names, read
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, make_namespace, ready
from virtual_node.rights import tunnel

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
    """The chart without clusters on a real upper node, and a lower cluster with a real node that reaches the upper one."""
    if os.geteuid() != 0:
        pytest.skip("containers on a real node need root")
    directory = tmp_path_factory.mktemp("join") / "sandbox"
    async with Sandbox(lower=1, real_node=True, upper_real_node=True, directory=directory) as sandbox:
        assert sandbox.real_node is not None
        assert sandbox.upper_node is not None
        connect(sandbox.real_node.bridge, sandbox.upper_node.bridge)
        await charts.load_images(sandbox, image)
        for part, node in (("server", sandbox.upper_node), ("agent", sandbox.real_node)):
            program = (await binaries.ensure([f"konnectivity-{part}"]))[f"konnectivity-{part}"]
            tag = f"{tunnel.IMAGES}/proxy-{part}:{tunnel.VERSION}"
            konnectivity = images.Image(tags=(tag,), files={part: program}, entrypoint=(f"/{part}",))
            await asyncio.to_thread(node.import_images, [konnectivity])
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


@contextlib.contextmanager
def _closed(sandbox: Sandbox) -> Iterator[None]:
    """Let programs and pods of the upper node open connections only to each other and to the upper API server."""
    assert sandbox.upper_node is not None
    assert sandbox.real_node is not None
    edge = sandbox.upper_node.bridge
    rules = {
        "FORWARD": ("-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", "-d {pods} -j ACCEPT", "-p tcp --dport {api} -j ACCEPT", "-s {pods} -j DROP"),
        "OUTPUT": ("-o lo -j ACCEPT", "-m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", "-d {pods} -j ACCEPT", "-p tcp --dport {api} -j ACCEPT", "-j DROP"),
    }  # fmt: skip

    def change(how: str) -> None:
        for chain, lines in rules.items():
            for line in reversed(lines):
                text = line.format(pods=edge.subnet, api=sandbox.upper.port)
                run_command(*map(str, edge.inside(["iptables", how, chain, *text.split()])))

    change("-I")
    try:
        lower = sandbox.lower[0]
        reached = f"exec 3<>/dev/tcp/{lower.address}/{lower.port}"
        with pytest.raises(SandboxError):
            run_command(*map(str, edge.inside(["timeout", "1", "bash", "-c", reached])))
        yield
    finally:
        change("-D")


async def test_a_cluster_behind_a_firewall_joins_through_a_tunnel(installed: Sandbox):
    """`join` proves log and exec, and keeps it; `leave` removes it. While it is down, nothing is lost and errors say why."""
    upper, lower = installed.upper, installed.lower[0]
    assert installed.upper_node is not None
    before = await _state(installed)
    address = f"{installed.upper_node.bridge.node_address}:30891"
    with _closed(installed):
        joined = await _run(installed, "join", "--via=konnectivity", f"--tunnel-address={address}")
        assert "log and exec of the pod work through the tunnel" in joined.stdout, joined.stdout
        after, revision = await _state(installed), await _revision(installed)
        again = await _run(installed, "join", "--probe-image=")
        assert "has a valid token" in again.stdout, "the kubeconfig still leads through the tunnel"
        assert (await _state(installed), await _revision(installed)) == (after, revision)

        await make_namespace(upper, "far")
        serve = "while true; do echo hello | nc -l -p 8080; done & echo begun; exec sleep 3600"
        await create(upper, "far", pod("web", serve, node=lower.name))
        await ready(upper, "far", "web")
        await _lose_the_tunnel(installed)
        await upper.kubectl("delete", "namespace", "far", "--wait")
        await becomes(lambda: _state(installed), after, what="the pod's namespace is gone in both clusters")
        await _run(installed, "leave")
        await becomes(lambda: _state(installed), before, what="both clusters are as before")
        left = await read(lower, "-A", "pods,secrets,deployments", "-l", "app.kubernetes.io/component=tunnel")
        assert names(left) == []


async def _lose_the_tunnel(sandbox: Sandbox) -> None:
    upper, lower = sandbox.upper, sandbox.lower[0]

    async def log() -> str:
        return (await upper.kubectl("-n", "far", "logs", "web")).stdout

    await becomes(log, "begun\n", what="the log comes through the tunnel")
    await becomes(lambda: _forwarded(sandbox), "hello\n", what="the port is forwarded through the tunnel")
    following = asyncio.create_task(upper.kubectl("-n", "far", "logs", "-f", "web", check=False, timeout=120))
    stream = asyncio.create_task(
        upper.kubectl(
            "-n", "far", "exec", "web", "--", "sh", "-c", "echo in; sleep 600", check=False, timeout=120
        )
    )
    inside = "for each in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $each; echo; done"

    async def sleeps() -> bool:
        return (
            "sleep 600" in (await upper.kubectl("-n", "far", "exec", "web", "--", "sh", "-c", inside)).stdout
        )

    await eventually(sleeps, what="the stream is open")
    uid = (await get(lower, "far", "pods", "web"))["metadata"]["uid"]
    agent = await _agent(lower)
    await lower.kubectl("-n", "virtual-node", "scale", "deployment", agent, "--replicas=0")
    assert (await stream).returncode
    await following  # without an error, because the upper API server ignores that a kubelet breaks off a log

    async def refusal() -> str:
        return (await upper.kubectl("-n", "far", "exec", "web", "--", "true", check=False)).stderr

    await eventually(
        lambda: _contains(refusal, "no agent of its tunnel is connected"), what="exec names the cause"
    )

    async def doctor() -> str:
        argv = [sys.executable, "-m", "virtual_node", "doctor", "--kubeconfig", str(upper.kubeconfig)]
        return (await command(argv, check=False)).stdout

    await eventually(
        lambda: _contains(doctor, "selector app.kubernetes.io/component=tunnel"), what="doctor has the step"
    )
    await create(upper, "far", pod("late", "sleep 3600", node=lower.name))
    await lower.kubectl("-n", "virtual-node", "scale", "deployment", agent, "--replicas=1")
    await ready(upper, "far", "web")
    await ready(upper, "far", "late")
    found = await get(lower, "far", "pods", "web")
    assert (found["metadata"]["uid"], found["status"]["containerStatuses"][0]["restartCount"]) == (uid, 0)
    assert await log() == "begun\n"


async def _agent(lower: Cluster) -> str:
    listed = await read(
        lower, "-n", "virtual-node", "deployments", "-l", "app.kubernetes.io/component=tunnel"
    )
    (name,) = (one["metadata"]["name"] for one in listed["items"])
    return str(name)


async def _contains(read: Callable[[], Awaitable[str]], text: str) -> bool:
    return text in await read()


async def _forwarded(sandbox: Sandbox) -> str:
    """Return what the pod's port answers through a port-forward."""
    place = ("--kubeconfig", sandbox.upper.kubeconfig, "-n", "far")
    argv = (sandbox.binaries["kubectl"], *place, "port-forward", "pod/web", ":8080")
    process = await asyncio.create_subprocess_exec(*argv, stdout=asyncio.subprocess.PIPE)
    try:
        assert process.stdout is not None
        line = (await process.stdout.readline()).decode()
        port = int(line.split(" -> ")[0].rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            return (await reader.readline()).decode()
        finally:
            writer.close()
    finally:
        process.terminate()
        await process.wait()

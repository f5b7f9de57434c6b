"""The sandbox on this machine: it starts what it promises, and removes all of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Sandbox, SandboxError
from hack.sandbox.cluster import Cluster
from hack.sandbox.nodes.remains import cgroup_hierarchies
from hack.sandbox.process import start_time
from hack.sandbox.stopping import running, stop_all
from tests.waiting import PATIENCE, becomes

pytestmark = [pytest.mark.timeout(900)]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="containers on a real node need root")

OWNER = """
import asyncio, json, sys
from hack.sandbox import Sandbox
from tests.clusters.sandbox.test_sandbox import busybox, create_and_wait

async def main():
    async with Sandbox(lower=1, real_node=True) as sandbox:
        await create_and_wait(sandbox.lower[0], busybox("p"))
        print(json.dumps({
            "directory": str(sandbox.directory), "bridge": sandbox.bridge.name, "cgroup": sandbox._remains[0]["cgroup"],
            "janitor": sandbox._janitor._process.pid,
        }), flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""


def busybox(name: str, script: str = "echo started; exec sleep 1000") -> dict[str, Any]:
    """Return a pod that runs a shell script."""
    container = {"name": "main", "image": "busybox:1.36", "command": ["sh", "-c", script]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"terminationGracePeriodSeconds": 1, "containers": [container]},
    }


async def create_and_wait(cluster: Cluster, pod: dict[str, Any]) -> None:
    """Create a pod in the default namespace and wait until it is Ready."""
    await cluster.apply(pod)
    name = pod["metadata"]["name"]
    await cluster.kubectl("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=150s")


async def ended(pid: int) -> None:
    """Wait until a process that is not a child of this one has ended."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    handle = os.pidfd_open(pid)
    try:
        loop.add_reader(handle, gone.set)
        async with asyncio.timeout(PATIENCE):
            await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


def remains(directory: str, bridge: str, cgroup: str) -> dict[str, list[str]]:
    """Return what is left on the machine of a sandbox with a real node, by kind."""
    links = subprocess.run(["ip", "-br", "link"], check=True, capture_output=True, text=True).stdout
    commands, logs = [], []
    # Objects of other programs on this machine may change meanwhile.
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            commands.append(path.read_bytes())
    for path in Path("/var/log/containers").glob("*"):
        with contextlib.suppress(OSError):
            logs.append((path, str(path.readlink())))
    found = {
        "processes": [line.replace(b"\0", b" ").decode() for line in commands if directory.encode() in line],
        "mounts": [line for line in Path("/proc/mounts").read_text().splitlines() if directory in line],
        "bridges": [line for line in links.splitlines() if line.split()[0] == bridge],
        "namespaces": [bridge] if (Path("/run/netns") / bridge).exists() else [],
        "cgroups": [str(home / cgroup) for home in cgroup_hierarchies() if (home / cgroup).exists()],
        "logs": [str(link) for link, target in logs if target.startswith(directory)],
        "files": [directory] if Path(directory).exists() else [],
    }
    return {kind: lines for kind, lines in found.items() if lines}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox() -> AsyncIterator[Sandbox]:
    """An upper cluster, and a lower one with two simulated nodes."""
    async with Sandbox(lower=1, kwok_nodes=2) as running_sandbox:
        yield running_sandbox


async def test_every_control_plane_is_healthy(sandbox: Sandbox):
    """Both apiservers are ready, and both clusters have a working controller manager and scheduler."""
    for cluster in sandbox.clusters:
        assert (await cluster.kubectl("get", "--raw=/readyz")).stdout == "ok"
        assert cluster.controller_manager.running
        assert cluster.scheduler.running


async def test_nodes_are_ready_in_the_lower_and_absent_in_the_upper_cluster(sandbox: Sandbox):
    lower_nodes = json.loads((await sandbox.lower[0].kubectl("get", "nodes", "-o", "json")).stdout)["items"]
    assert [node["metadata"]["name"] for node in lower_nodes] == ["lower1-node-0", "lower1-node-1"]
    upper_nodes = json.loads((await sandbox.upper.kubectl("get", "nodes", "-o", "json")).stdout)["items"]
    assert upper_nodes == []


async def test_a_pod_runs_on_a_simulated_node_and_is_deleted(sandbox: Sandbox):
    """The scheduler binds it, kwok runs it, and a deletion with a grace period completes."""
    lower = sandbox.lower[0]
    await create_and_wait(lower, busybox("p"))
    found = json.loads((await lower.kubectl("get", "pod", "p", "-o", "json")).stdout)
    assert found["status"]["phase"] == "Running"
    assert found["spec"]["nodeName"].startswith("lower1-node-")
    await lower.kubectl("delete", "pod", "p", "--timeout=150s")
    assert (await lower.kubectl("get", "pod", "p", check=False)).returncode == 1


async def test_a_killed_apiserver_restarts_with_its_port_and_data(sandbox: Sandbox):
    """After kill -9 and a start the same kubeconfig works."""
    upper = sandbox.upper
    await upper.kubectl("create", "configmap", "kept", "--from-literal=a=b")
    before = upper.apiserver.pid
    await upper.apiserver.kill()
    assert (await upper.kubectl("get", "configmap", "kept", check=False)).returncode == 1
    await upper.restore()
    assert upper.apiserver.pid != before
    assert (await upper.kubectl("get", "configmap", "kept", "-o", "name")).stdout == "configmap/kept\n"


async def test_a_failing_kubectl_quotes_its_output(sandbox: Sandbox):
    """With check it raises kubectl's error; without, output and exit code are returned."""
    with pytest.raises(SandboxError, match='pods "nobody" not found'):
        await sandbox.upper.kubectl("get", "pod", "nobody")
    done = await sandbox.upper.kubectl("get", "pod", "nobody", check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert 'pods "nobody" not found' in done.stderr


async def test_a_lower_cluster_joins_later(sandbox: Sandbox):
    """A cluster added to a running sandbox is ready, with nodes, and apart from the others."""
    added = await sandbox.add_lower(kwok_nodes=1)
    assert (await added.kubectl("get", "nodes", "-o", "name")).stdout == "node/lower2-node-0\n"
    uids = {
        (await cluster.kubectl("get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}")).stdout
        for cluster in sandbox.clusters
    }
    assert len(uids) == 3


async def test_another_command_stops_a_kept_sandbox(tmp_path):
    """Kept processes, one restarted since, outlive their owner; stopping by folder ends every one."""
    directory = tmp_path / "kept"
    async with Sandbox(lower=0, directory=directory, keep=True) as kept:
        await kept.upper.apiserver.kill()
        await kept.upper.apiserver.start()
        pids = [kept.upper.apiserver.pid, kept.upper.scheduler.pid, kept.upper.controller_manager.pid]
    assert set(running(directory)) == {
        "etcd", "upper/kube-apiserver", "upper/kube-controller-manager", "upper/kube-scheduler",
    }  # fmt: skip
    with pytest.raises(SandboxError, match=r"runs in .*kept already"):
        async with Sandbox(lower=0, directory=directory):
            pytest.fail("two sandboxes in one folder")
    assert await stop_all(directory) == 4
    assert [start_time(pid) for pid in pids] == ["", "", ""]
    assert not directory.exists()
    # The parent reaps what init would reap once the command that started them has ended.
    for process in [*kept.upper.processes, kept.etcd]:
        assert process is not None
        await process.stop()


async def test_an_exception_in_the_body_stops_everything():
    """It leaves no process and no folder."""
    broken = Sandbox(lower=0)

    async def body() -> None:
        async with broken:
            seen.append(start_time(broken.upper.apiserver.pid))
            raise ZeroDivisionError

    seen: list[str] = []
    with pytest.raises(ZeroDivisionError):
        await body()
    assert seen != [""]
    assert not any(process.running for process in broken.upper.processes)
    assert not broken.directory.exists()


@root_only
@pytest.mark.real_node
async def test_a_real_node_runs_containers_reaches_services_and_leaves_nothing():
    """Logs and exec work, CoreDNS resolves, kube-proxy forwards to the endpoint, and the machine's firewall rules stay."""

    def rules() -> list[str]:
        saved = subprocess.run(["iptables-save"], check=True, capture_output=True, text=True).stdout
        return [line for line in saved.splitlines() if line.startswith("-A")]

    before = rules()
    async with Sandbox(lower=1, real_node=True) as real:
        lower = real.lower[0]
        server = busybox(
            "s", "echo from inside; echo served > /tmp/index.html; exec httpd -f -p 8080 -h /tmp"
        )
        server["metadata"]["labels"] = {"app": "s"}
        service = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"selector": {"app": "s"}, "ports": [{"port": 80, "targetPort": 8080}]},
        }
        await lower.apply(service)
        await create_and_wait(lower, server)

        async def log() -> str:
            return (await lower.kubectl("logs", "s")).stdout

        await becomes(log, "from inside\n", what="the container's first words")
        await create_and_wait(lower, busybox("c"))
        done = await lower.kubectl(
            "exec", "-i", "c", "--", "sh", "-c", "cat; exit 7", input="in", check=False
        )
        assert (done.returncode, done.stdout) == (7, "in")
        fetch = "until wget -q -O- http://web.default.svc.cluster.local; do sleep 0.2; done"
        done = await lower.kubectl("exec", "c", "--", "timeout", "120", "sh", "-c", fetch)
        assert done.stdout == "served\n"
        assert rules() == before
        # Not in the folder of the machine's kubelet and those of other sandboxes, which would remove each other's sockets.
        assert (lower.directory / "node" / "device-plugins" / "kubelet.sock").is_socket()
        assert real.bridge is not None
        facts = {
            "directory": str(real.directory), "bridge": real.bridge.name, "cgroup": real._remains[0]["cgroup"],
        }  # fmt: skip
        kinds = {"processes", "mounts", "bridges", "namespaces", "cgroups", "logs", "files"}
        assert set(remains(**facts)) == kinds
    assert remains(**facts) == {}


@root_only
@pytest.mark.real_node
async def test_nothing_is_left_when_the_owner_is_killed():
    """After kill -9 of the owner, containers, bridge, cgroup, mounts and files are removed."""
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).resolve().parents[3]
    )
    assert owner.stdout is not None
    facts = json.loads(await owner.stdout.readline())
    janitor = facts.pop("janitor")
    assert "processes" in remains(**facts)
    waiting = asyncio.ensure_future(ended(janitor))
    owner.send_signal(signal.SIGKILL)
    await owner.wait()
    await waiting
    assert remains(**facts) == {}

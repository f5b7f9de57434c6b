"""logs, exec, attach, port-forward, cp and debug with the real kubectl, through the virtual node to a real node."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import pty
import re
import secrets
import signal
import termios
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds import binaries
from hack.sandbox.builds.programs import OLD_KUBECTL
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.command import command
from tests.clusters.virtual_nodes import pod
from tests.waiting import PATIENCE, create, eventually, get, make_namespace, node_ready, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

_PASSED_ON = re.compile(
    r'^apiserver_websocket_streaming_requests_total\{proxy_type="proxied_to_kubelet",subresource="(\w+)"\} (\d+)$',
    re.MULTILINE,
)

SCRIPT = """
echo first; echo second >&2; echo third
mkdir -p /tmp/www && echo served > /tmp/www/index.html && httpd -p 8080 -h /tmp/www
i=0; while true; do i=$((i+1)); echo "beat $i"; sleep 0.2; done
"""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(sandbox: Sandbox) -> AsyncIterator[tuple[str, str]]:
    """Namespace and name of a pod for all tests of this module."""
    upper, namespace = sandbox.upper, f"streams-{secrets.token_hex(3)}"
    await make_namespace(upper, namespace)
    await create(upper, namespace, pod("web", SCRIPT, container={"stdin": True}))
    await ready(upper, namespace, "web")

    async def serves() -> bool:
        # A Ready container has been started, but its script may not have begun.
        return "beat 1" in (await upper.kubectl("-n", namespace, "logs", "web")).stdout

    await eventually(serves, what="the script's first beat")
    yield namespace, "web"
    await upper.api.delete(f"/api/v1/namespaces/{namespace}")


def over(protocol: str) -> dict[str, str]:
    """Return kubectl's environment for streams over ``websocket`` or ``spdy``."""
    names = ("KUBECTL_REMOTE_COMMAND_WEBSOCKETS", "KUBECTL_PORT_FORWARD_WEBSOCKETS")
    return dict.fromkeys(names, str(protocol == "websocket").lower())


both_protocols = pytest.mark.parametrize("protocol", ["websocket", "spdy"])


async def spawn(
    sandbox: Sandbox,
    *arguments: str,
    stdin: int | None = None,
    cluster: Cluster | None = None,
    env: Mapping[str, str] | None = None,
    kubectl: Path | None = None,
) -> asyncio.subprocess.Process:
    """Run a kubectl in the background on a cluster, by default the upper one."""
    return await asyncio.create_subprocess_exec(
        kubectl or sandbox.binaries["kubectl"],
        "--kubeconfig",
        (cluster or sandbox.upper).kubeconfig,
        *arguments,
        stdin=stdin if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(env or {})},
    )


async def end(process: asyncio.subprocess.Process) -> None:
    """Kill a kubectl and wait for its end."""
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await process.communicate()


async def first_port(forwarding: asyncio.subprocess.Process) -> int:
    """Return the local port of a ``kubectl port-forward``: Forwarding from 127.0.0.1:41234 -> 8080."""
    assert forwarding.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return int((await forwarding.stdout.readline()).split()[2].rpartition(b":")[2])


async def test_logs_have_every_line_in_order(upper: Cluster, running):
    """Stdout and stderr of the lower container."""
    namespace, name = running
    done = await upper.kubectl("-n", namespace, "logs", name)
    assert {"first", "second", "third"} <= set(done.stdout.split("\n"))


@pytest.mark.parametrize(("option", "lines"), [("--tail=1", 1), ("--tail=0", 0), ("--limit-bytes=5", 1)])
async def test_logs_options_limit_the_output(upper: Cluster, running, option, lines):
    """--tail (0 too) and --limit-bytes reach the lower kubelet."""
    namespace, name = running
    done = await upper.kubectl("-n", namespace, "logs", name, option)
    assert len(done.stdout.splitlines()) == lines


async def test_logs_since_and_timestamps(upper: Cluster, running):
    """--since leaves old lines out, --timestamps stamps the rest."""
    namespace, name = running

    async def old_enough() -> bool:
        return "beat 20" in (await upper.kubectl("-n", namespace, "logs", name)).stdout

    await eventually(old_enough, what="twenty beats, four seconds")

    async def recent() -> bool:
        done = await upper.kubectl("-n", namespace, "logs", name, "--since=2s", "--timestamps")
        lines = done.stdout.splitlines()
        assert all(line.split(" ", 1)[1].startswith("beat") and line[4] == "-" for line in lines)
        return bool(lines)

    await eventually(recent, what="beats of the last two seconds")


async def test_logs_follow_new_lines(sandbox: Sandbox, running):
    namespace, name = running
    process = await spawn(sandbox, "-n", namespace, "logs", "-f", name, "--tail=1")
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            lines = [await process.stdout.readline() for _ in range(5)]
    finally:
        await end(process)
    beats = [int(line.split()[1]) for line in lines]
    assert beats == list(range(beats[0], beats[0] + 5))


async def test_logs_of_an_unknown_container_are_an_error_that_names_it(upper: Cluster, running):
    namespace, name = running
    done = await upper.kubectl("-n", namespace, "logs", name, "-c", "nope", check=False)
    assert done.returncode == 1
    assert "nope" in done.stderr


@both_protocols
async def test_exec_carries_output_errors_and_exit_code(upper: Cluster, running, protocol):
    """Stdout and stderr stay separate, and kubectl ends with the command's own code."""
    namespace, name = running
    done = await upper.kubectl(
        "-n", namespace, "exec", name, "--", "sh", "-c", "echo out; echo err >&2; exit 42",
        check=False, env=over(protocol),
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (42, "out\n")
    assert "err\n" in done.stderr


@both_protocols
async def test_exec_passes_stdin_to_its_end(upper: Cluster, running, protocol):
    """`exec -i`: the command reads its end of input, and its output still arrives."""
    namespace, name = running
    data = secrets.token_hex(50_000)
    done = await upper.kubectl(
        "-n",
        namespace,
        "exec",
        "-i",
        name,
        "--",
        "sha256sum",
        input=data,
        env=over(protocol),
    )
    assert done.stdout.split()[0] == hashlib.sha256(data.encode()).hexdigest()


async def test_an_old_kubectl_streams(sandbox: Sandbox, running, tmp_path: Path):
    """Kubectl 1.31 has WebSockets for ``exec`` and ``cp``, and SPDY for ``port-forward``."""
    namespace, name = running
    (kubectl,) = (await binaries.ensure([f"kubectl-{OLD_KUBECTL[0]}"])).values()
    own = [kubectl, "--kubeconfig", sandbox.upper.kubeconfig, "-n", namespace]
    done = await command(
        [*own, "exec", "-i", name, "--", "sh", "-c", "cat; exit 42"], input="typed", check=False
    )
    assert (done.returncode, done.stdout) == (42, "typed")
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(bytes(range(256)) * 1000)
    await command([*own, "cp", there, f"{name}:/tmp/old"])
    await command([*own, "cp", f"{name}:/tmp/old", back])
    assert back.read_bytes() == there.read_bytes()
    forwarded = await spawn(sandbox, "-n", namespace, "port-forward", name, ":8080", kubectl=kubectl)
    try:
        port = await first_port(forwarded)
        async with aiohttp.ClientSession() as session, session.get(f"http://{LOOPBACK}:{port}/") as answer:
            assert await answer.text() == "served\n"
    finally:
        await end(forwarded)


def all_of(terminal: int) -> bytes:
    """Return the output of a terminal that no process holds open any more."""
    found = b""
    with contextlib.suppress(OSError):  # EIO is its end
        while piece := os.read(terminal, 4096):
            found += piece
    return found


@both_protocols
async def test_exec_has_a_terminal(sandbox: Sandbox, running, protocol):
    """The command sees the terminal's size, and a change of it."""
    namespace, name = running
    script = """
        until stty size | grep -q '33 77'; do sleep 0.1; done; tty && echo first size
        until stty size | grep -q '44 88'; do sleep 0.1; done; echo second size
    """
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (33, 77))
    process = await asyncio.create_subprocess_exec(
        sandbox.binaries["kubectl"], "--kubeconfig", sandbox.upper.kubeconfig,
        "-n", namespace, "exec", "-it", name, "--", "sh", "-c", script,
        stdin=slave, stdout=slave, stderr=slave, env={**os.environ, **over(protocol)},
    )  # fmt: skip
    os.close(slave)
    try:
        async with asyncio.timeout(PATIENCE):
            seen = b""
            while b"first size" not in seen:
                seen += await asyncio.to_thread(os.read, master, 4096)
            termios.tcsetwinsize(master, (44, 88))
            process.send_signal(signal.SIGWINCH)
            assert await process.wait() == 0
        assert b"second size" in await asyncio.to_thread(all_of, master)
    finally:
        await end(process)
        os.close(master)


@both_protocols
async def test_attach_follows_the_main_process(sandbox: Sandbox, running, protocol):
    """`attach` shows new output of the container's own process."""
    namespace, name = running
    process = await spawn(sandbox, "-n", namespace, "attach", name, env=over(protocol))
    try:
        assert process.stdout is not None
        async with asyncio.timeout(PATIENCE):
            line = b""
            while not line.startswith(b"beat"):
                line = await process.stdout.readline()
                assert line, "attach ended"
    finally:
        await end(process)


@both_protocols
async def test_port_forward_serves_requests(sandbox: Sandbox, running, protocol):
    """Sequential and concurrent requests through `port-forward` reach the pod's server, by each of two local ports."""
    namespace, name = running
    forward = ("port-forward", "--address=127.0.0.1", name, ":8080", ":8080")
    process = await spawn(sandbox, "-n", namespace, *forward, env=over(protocol))
    try:
        async with asyncio.timeout(PATIENCE), aiohttp.ClientSession() as session:
            ports = [await first_port(process), await first_port(process)]

            async def fetch(port: int) -> str:
                async with session.get(f"http://127.0.0.1:{port}/") as answer:
                    return await answer.text()

            assert await fetch(ports[0]) == "served\n"
            assert await asyncio.gather(*map(fetch, ports * 25)) == ["served\n"] * 50
    finally:
        await end(process)


@both_protocols
async def test_cp_keeps_every_byte_in_both_directions(upper: Cluster, running, tmp_path: Path, protocol):
    namespace, name = running
    there, back = tmp_path / "there", tmp_path / "back"
    there.write_bytes(secrets.token_bytes(3_000_000))
    await upper.kubectl("cp", str(there), f"{namespace}/{name}:/tmp/copied", env=over(protocol))
    await upper.kubectl("cp", f"{namespace}/{name}:/tmp/copied", str(back), env=over(protocol))
    assert back.read_bytes() == there.read_bytes()


async def test_websockets_reach_the_kubelet_port(sandbox: Sandbox, upper: Cluster, running):
    """The API server passes them on, because the virtual node declares that it accepts them."""
    namespace, name = running

    async def passed_on() -> Counter[str]:
        text = (await upper.kubectl("get", "--raw", "/metrics")).stdout
        return Counter({verb: int(count) for verb, count in _PASSED_ON.findall(text)})

    before = await passed_on()
    await upper.kubectl("-n", namespace, "exec", name, "--", "true", env=over("websocket"))
    process = await spawn(sandbox, "-n", namespace, "port-forward", name, ":8080", env=over("websocket"))
    await first_port(process)
    await end(process)
    assert await passed_on() - before == {"exec": 1, "portforward": 1}


async def test_debug_adds_an_ephemeral_container(upper: Cluster, namespace):
    """`kubectl debug` starts it in the lower cluster, and its status and logs are mirrored.

    The profile `general` adds SYS_PTRACE, which the default policy allows for debug containers.
    """
    await create(upper, namespace, pod("patient", "sleep 600"))
    await ready(upper, namespace, "patient")
    await upper.kubectl(
        "-n", namespace, "debug", "patient", "--image=busybox:1.36", "--image-pull-policy=IfNotPresent",
        "--container=doctor", "--profile=general", "--", "sh", "-c", "echo examined; sleep 600",
    )  # fmt: skip

    async def examined() -> bool:
        done = await upper.kubectl("-n", namespace, "logs", "patient", "-c", "doctor", check=False)
        return "examined" in done.stdout

    await eventually(examined, what="the ephemeral container's log")

    async def runs() -> bool:
        status = (await get(upper, namespace, "pod", "patient"))["status"]["ephemeralContainerStatuses"]
        return "running" in status[0]["state"]

    await eventually(runs, what="the ephemeral container's status")


async def test_previous_logs_of_a_crash(upper: Cluster, namespace):
    """A crashing container shows CrashLoopBackOff in the upper cluster, and `logs --previous` its last output."""
    await create(upper, namespace, pod("crash", "echo last words; exit 3"))

    async def crashed() -> bool:
        status = (await get(upper, namespace, "pod", "crash"))["status"]
        return any(
            container["restartCount"] >= 1
            and container["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
            and container["lastState"]["terminated"]["exitCode"] == 3
            for container in status.get("containerStatuses", ())
        )

    async def last_line() -> bool:
        # When a container dies, its kubelet removes the previous log at once, and still names that one as
        # "previous" until its next sync. Meanwhile the response is "unable to retrieve container logs",
        # here as on any node.
        done = await upper.kubectl("-n", namespace, "logs", "crash", "--previous", check=False)
        return done.stdout == "last words\n"

    await eventually(crashed, what="CrashLoopBackOff")
    await eventually(last_line, what="the log of the container before")


async def test_open_streams_continue_when_another_replica_takes_the_cluster(sandbox: Sandbox, namespace):
    """Far beyond the drain timeout, until the cluster's configuration changes; new streams reach the other replica."""
    upper, node, election = sandbox.upper, "vn-moving", "virtual-node.io/election=moving"
    file = sandbox.directory / "moving.yaml"
    config = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "leaderElection": {"enabled": True, "mode": "Sharded", "name": "moving"},
        "kubelet": {"port": 0, "drainTimeout": 1},
        "clusters": [
            {
                "name": node,
                "kubeconfig": str(sandbox.lower[0].kubeconfig),
                "namespaces": {"adopt": True},
            }
        ],
    }
    file.write_text(json.dumps(config), encoding="utf-8")

    async def replicas() -> set[str]:
        leases = await get(
            upper, "kube-system", "leases", labels=f"{election},!virtual-node.io/lower-cluster"
        )
        return {lease["spec"]["holderIdentity"] for lease in leases["items"]}

    async def port() -> int:
        found = await get(upper, "", "node", node)
        return int(found["status"]["daemonEndpoints"]["kubeletEndpoint"]["Port"])

    first = await sandbox.start_virtual_node("--config", str(file), name="moving-1")
    await node_ready(upper, node)
    (earlier,), before = await replicas(), await port()
    script = 'i=0; while true; do i=$((i+1)); echo "beat $i"; sleep 0.2; done'
    await create(upper, namespace, pod("web", script, node=node))
    await ready(upper, namespace, "web")
    log = await spawn(sandbox, "-n", namespace, "logs", "-f", "web")
    shell = await spawn(
        sandbox, "-n", namespace, "exec", "-i", "web", "--", "cat", stdin=asyncio.subprocess.PIPE
    )
    try:
        assert await _echo(shell, "before") == "before"
        beats = [await _beat(log)]
        second = await sandbox.start_virtual_node("--config", str(file), name="moving-2")

        async def two() -> bool:
            return len(await replicas()) == 2

        await eventually(two, what="the second replica")
        (later,) = await replicas() - {earlier}
        holder = json.dumps({"spec": {"holderIdentity": later}})
        await upper.kubectl(
            *("-n", "kube-system", "patch", "lease", f"moving-cluster-{node}", "--type=merge", "-p", holder)
        )

        async def closed() -> bool:
            """Report whether the earlier replica does not listen any more."""
            try:
                _, writer = await asyncio.open_connection(LOOPBACK, before)
            except ConnectionRefusedError:
                return await port() != before
            writer.close()
            return False

        await eventually(closed, what="new streams reach the second replica only")
        assert (await upper.kubectl("-n", namespace, "exec", "web", "--", "echo", "new")).stdout == "new\n"
        last = await _last_beat(upper, namespace)
        while beats[-1] < last + 10:  # two seconds after the listener closed, twice the drain timeout
            beats.append(await _beat(log))
        assert beats == list(range(beats[0], beats[-1] + 1))
        assert await _echo(shell, "after") == "after"
        changed = json.dumps(config).replace('"namespaces"', '"labels": {"zone": "b"}, "namespaces"')
        file.write_text(changed, encoding="utf-8")
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(log.communicate(), shell.wait())
        await first.stop()
        await upper.kubectl("-n", namespace, "delete", "pod", "web")
        await second.stop()
        await upper.kubectl("delete", "node", node)
    finally:
        await asyncio.gather(end(log), end(shell))


async def _beat(log: asyncio.subprocess.Process) -> int:
    """Return the number in the next line of a log."""
    assert log.stdout is not None
    async with asyncio.timeout(PATIENCE):
        return int((await log.stdout.readline()).split()[1])


async def _last_beat(upper: Cluster, namespace: str) -> int:
    done = await upper.kubectl("-n", namespace, "logs", "web", "--tail=1")
    return int(done.stdout.split()[1])


async def _echo(shell: asyncio.subprocess.Process, text: str) -> str:
    """Send a line to ``exec -i -- cat``; return the line that comes back."""
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{text}\n".encode())
    async with asyncio.timeout(PATIENCE):
        # kubectl logs this if the first frame, which is empty, arrives before its stream is registered.
        while "Unknown stream id" in (line := (await shell.stdout.readline()).decode()):
            pass
        return line.strip()

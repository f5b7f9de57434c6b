"""The demo: virtual nodes, an upper Deployment, and proof that its pods run in a lower cluster.

What the demo prints is checked, so that it fails instead of showing something else than it says.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shlex
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Any

import aiohttp
from rich.console import Console
from rich.text import Text

from hack.sandbox.builds.programs import Progress
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.commands import demo_scheduling, environment
from hack.sandbox.errors import SandboxError
from hack.sandbox.ports import free_ports
from hack.sandbox.sandbox import Sandbox

_PORT = 8080
_GREETING = "the lower copy of the pod's ConfigMap"


def configuration(sandbox: Sandbox, *, adopt: bool = False) -> dict[str, Any]:
    """Return the configuration of one virtual-node process for all lower clusters.

    Args:
        sandbox: the clusters.
        adopt: whether pods may use lower namespaces that exist already, such as ``default``.
    """
    return {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "ClusterSetConfiguration",
        "kubeconfig": str(sandbox.upper.kubeconfig),
        "kubelet": {"port": 0, "nodeIP": LOOPBACK},
        "clusters": [
            {
                "name": cluster.name,
                "kubeconfig": str(cluster.kubeconfig),
                "nodeName": f"vn-{cluster.name}",
                "labels": {"clusterID": cluster.name},
                **({"namespaces": {"adopt": True}} if adopt else {}),
            }
            for cluster in sandbox.lower
        ],
    }


def objects(node: str) -> list[dict[str, Any]]:
    """Return a namespace with a Deployment whose pods run on the node."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "demo"}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "hello", "namespace": "demo"},
            "data": {"greeting": _GREETING},
        },
        _workload(node),
    ]


def _workload(node: str) -> dict[str, Any]:
    """Return a Deployment of a small web server with a heartbeat in its log."""
    script = (
        'mkdir -p /tmp/www && echo "greetings from $(hostname), configured by: $GREETING" > /tmp/www/index.html; '
        f"httpd -p {_PORT} -h /tmp/www; "
        'i=0; while true; do i=$((i+1)); echo "heartbeat $i"; sleep 1; done'
    )
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "hello", "namespace": "demo"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "hello"}},
            "template": {
                "metadata": {"labels": {"app": "hello"}},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": {"kubernetes.io/hostname": node},
                    "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
                    "containers": [
                        {
                            "name": "web",
                            "image": "busybox:1.36",
                            "command": ["sh", "-c", script],
                            "stdin": True,
                            "env": [
                                {
                                    "name": "GREETING",
                                    "valueFrom": {"configMapKeyRef": {"name": "hello", "key": "greeting"}},
                                }
                            ],
                            "ports": [{"containerPort": _PORT}],
                        }
                    ],
                },
            },
        },
    }


async def run(sandbox: Sandbox, console: Console, report: Progress) -> None:
    """Run the demo.

    Raises:
        SandboxError: something does not work.
    """
    upper = sandbox.upper
    file = sandbox.directory / "virtual-node.yaml"
    file.write_text(json.dumps(configuration(sandbox), indent=1), encoding="utf-8")
    report("starting one virtual-node process for all lower clusters")
    page = f"{LOOPBACK}:{free_ports(1)[0]}"
    process = await sandbox.start_virtual_node("--config", str(file), f"--web-addr={page}")
    nodes = [f"vn-{cluster.name}" for cluster in sandbox.lower]
    for node in nodes:
        process.check()
        await upper.kubectl("wait", "--for=create", f"node/{node}", "--timeout=30s")
        await upper.kubectl("wait", "--for=condition=Ready", f"node/{node}", "--timeout=30s")
    report("creating a Deployment and its ConfigMap in the upper cluster")
    await upper.apply(*objects(nodes[0]))
    await upper.kubectl("-n", "demo", "rollout", "status", "deployment/hello", "--timeout=90s", timeout=120)
    report("its pods run in lower1, and the upper cluster shows them on the virtual node")
    await _show(sandbox, console, "upper", ["get", "nodes", "-o", "wide"])
    above = await _show(sandbox, console, "upper", ["-n", "demo", "get", "pods", "-o", "wide"])
    below = await _show(sandbox, console, "lower1", ["-n", "demo", "get", "pods", "-o", "wide"])
    pods = (await upper.kubectl("-n", "demo", "get", "pods", "-o", "name")).stdout.split()
    for pod in pods:
        expect(above, rf"(?m)^{pod.removeprefix('pod/')} .* Running .* {nodes[0]} ", "an upper pod")
        expect(below, rf"(?m)^{pod.removeprefix('pod/')} .* Running ", "the lower pod of the same name")
    if sandbox.bridge is not None:
        await _streams(sandbox, console, pods[0])
    else:
        report("logs, exec, attach and port-forward need a real lower node: run as root, or with --real-node")
    if len(sandbox.lower) > 1:
        await demo_scheduling.run(sandbox, report, partial(_show, sandbox, console))
    expect(await _fetched(f"http://{page}/"), r"^200\b", "the live page")
    _print_next_steps(sandbox, console, pods[0], page=f"http://{page}/")


async def _streams(sandbox: Sandbox, console: Console, pod: str) -> None:
    """Show logs, exec, attach and port-forward, all through the upper cluster."""
    name = pod.removeprefix("pod/")
    logs = await _show(sandbox, console, "upper", ["-n", "demo", "logs", pod, "--tail=2"])
    expect(logs, r"(?m)^heartbeat \d+$", "kubectl logs")
    shell = ["-n", "demo", "exec", pod, "--", "sh", "-c", "uname -n; echo $GREETING"]
    output = await _show(sandbox, console, "upper", shell)
    expect(output, rf"^{name}\n{_GREETING}$", "kubectl exec")
    await _attach(sandbox, console, pod)
    await _port_forward(sandbox, console, pod)


async def _attach(sandbox: Sandbox, console: Console, pod: str) -> None:
    """Attach to the pod until a line of its output arrives, and print it."""
    async with _output(sandbox, console, ["-n", "demo", "attach", pod]) as output:
        try:
            async with asyncio.timeout(20):
                line = await output.readline()
        except TimeoutError:
            raise SandboxError("kubectl attach: no output") from None
    text = line.decode().rstrip()
    console.print(text, highlight=False)
    expect(text, r"^heartbeat \d+$", "kubectl attach")


async def _port_forward(sandbox: Sandbox, console: Console, pod: str) -> None:
    """Forward a port and fetch the page behind it."""
    (port,) = free_ports(1)
    async with _output(sandbox, console, ["-n", "demo", "port-forward", pod, f"{port}:{_PORT}"]) as output:
        try:
            async with asyncio.timeout(20):
                await output.readline()
        except TimeoutError:
            raise SandboxError("kubectl port-forward: no output") from None
        text = await _fetched(f"http://{LOOPBACK}:{port}/")
    console.print(f"GET / → {text}", highlight=False)
    name = pod.removeprefix("pod/")
    expect(text, rf"^200: greetings from {name}, configured by: {_GREETING}$", "kubectl port-forward")


async def _fetched(url: str) -> str:
    """Return the status and text of a page.

    Raises:
        SandboxError: there is no answer.
    """
    try:
        async with asyncio.timeout(20), aiohttp.ClientSession() as session, session.get(url) as answer:
            return f"{answer.status}: {(await answer.text()).strip()}"
    except (TimeoutError, aiohttp.ClientError) as error:
        raise SandboxError(f"GET {url}: {str(error) or 'no answer'}") from None


@contextlib.asynccontextmanager
async def _output(
    sandbox: Sandbox, console: Console, argv: Sequence[str]
) -> AsyncIterator[asyncio.StreamReader]:
    """Show a kubectl command of the upper cluster, run it, yield its output, and kill it at the end."""
    _title(console, "upper", argv)
    process = await asyncio.create_subprocess_exec(
        sandbox.binaries["kubectl"],
        "--kubeconfig",
        sandbox.upper.kubeconfig,
        *argv,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        yield process.stdout
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def expect(output: str, pattern: str, what: str) -> None:
    """Check that an output contains a pattern.

    Raises:
        SandboxError: it does not; quotes the output.
    """
    if re.search(pattern, output) is None:
        raise SandboxError(f"{what}: expected {pattern!r} in the output, got {output[:1000]!r}")


async def _show(sandbox: Sandbox, console: Console, name: str, argv: Sequence[str]) -> str:
    """Run kubectl in a cluster; print the command and its output, and return the output."""
    cluster = next(cluster for cluster in sandbox.clusters if cluster.name == name)
    _title(console, name, argv)
    done = await cluster.kubectl(*argv)
    output = done.stdout.rstrip()
    console.print(output, highlight=False, markup=False, soft_wrap=True)
    return output


def _title(console: Console, name: str, argv: Sequence[str]) -> None:
    colour = "cyan" if name == "upper" else "magenta"
    console.print(
        f"\n[bold {colour}]{name}[/] [bold]$[/]", Text(shlex.join(["kubectl", *argv]), style="bold"),
        highlight=False, soft_wrap=True,
    )  # fmt: skip


def _print_next_steps(sandbox: Sandbox, console: Console, pod: str, *, page: str) -> None:
    """Print commands to try (the first one sets the shell's environment), the page's URL, and a fault."""
    lines = [
        f". {shlex.quote(str(environment.write(sandbox)))}      # kubectl and all programs on the PATH, the upper cluster",
        "virtual-node status      # the virtual nodes vn-lower1 and vn-lower2 (in make demo-helm: lower1 and lower2)",
        "virtual-node doctor      # after 30 s, reports a pod of demo/large: it waits on purpose, because no node has room",
        "kubectl -n demo scale deployment hello --replicas=5",
        f"kubectl -n demo describe {pod}",
    ]
    if sandbox.bridge is not None:
        lines += [f"kubectl -n demo exec -it {pod} -- sh", f"kubectl -n demo logs -f {pod}"]
    lines += [f"kubectl --kubeconfig ${cluster.name.upper()} get pods -A" for cluster in sandbox.lower]
    try_next(console, lines)
    console.print(f"\nThe live page: {page}", highlight=False, soft_wrap=True)
    try_fault(sandbox, console)
    console.print(f"\nlogs and kubeconfigs: {sandbox.directory}", highlight=False, soft_wrap=True)


def try_fault(sandbox: Sandbox, console: Console) -> None:
    """Print commands that simulate and end a fault, and the one that stops the sandbox."""
    lost = sandbox.lower[-1].name
    fault = [f"sandbox pause {lost}", "sleep 50; virtual-node doctor", f"sandbox resume {lost}"]
    try_next(console, fault, title="A fault to try: a lower cluster that no longer answers:")
    try_next(console, ["make demo-down"], title="Stop all of it:")


def try_next(console: Console, lines: Sequence[str], *, title: str = "Try next:") -> None:
    """Print commands that can be pasted."""
    console.print(f"\n{title}", style="bold green", highlight=False)
    for line in lines:
        console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)

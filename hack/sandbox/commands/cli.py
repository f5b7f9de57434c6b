"""``python -m hack.sandbox up|demo|helm|status|pause|resume|down``: the sandbox's command line."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from hack.chromium import is_installed as chromium_here
from hack.image import build
from hack.image.commands import BuildError
from hack.sandbox import attaching
from hack.sandbox.builds import binaries
from hack.sandbox.builds.packages import ensure_packages, install
from hack.sandbox.builds.programs import (
    CONTROL_PLANE,
    NODE,
    OLD_KUBECTL,
    OTHER_KUBERNETES,
    SIMULATION,
    apiserver,
)
from hack.sandbox.commands import demo, helm
from hack.sandbox.errors import SandboxError
from hack.sandbox.nodes import services
from hack.sandbox.sandbox import Sandbox
from hack.sandbox.stopping import read_state, running, stop_all

DEFAULT_DIRECTORY = Path(__file__).resolve().parents[3] / ".sandbox"


class Reporter:
    """Prints progress with the time since the start; in colour only on a terminal."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._started = time.monotonic()

    def __call__(self, line: str) -> None:
        """Print one line of progress."""
        self.console.print(
            f"[dim]{time.monotonic() - self._started:6.1f} s[/]  {line}", highlight=False, soft_wrap=True
        )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m hack.sandbox", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("up", "start clusters and leave them running"),
        ("demo", "the same, with virtual nodes, a workload and a tour"),
        ("helm", "the same, with a real upper node and the chart installed on it by helm (needs root)"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--lower", type=int, default=2, metavar="N", help="lower clusters (2)")
        command.add_argument(
            "--kwok-nodes", type=int, default=2, metavar="N", help="simulated nodes each (2)"
        )
        command.add_argument(
            "--real-node",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="containerd and kubelet in the first lower cluster (needs root; the demo tries it by default)",
        )
        command.add_argument(
            "--directory", type=Path, default=DEFAULT_DIRECTORY, help="where everything goes"
        )
    commands.add_parser("prepare", help="find or build every program, install the packages of real nodes")
    for name, text in (("down", "stop everything, by pid"), ("status", "what runs")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY)
    for name, text in (
        ("pause", "freeze a cluster's API server, as if its network failed"),
        ("resume", "let it continue"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("cluster", help="such as lower2")
        command.add_argument("--directory", type=Path, default=DEFAULT_DIRECTORY)
    options = parser.parse_args(argv)
    console = Console()
    try:
        return asyncio.run(_run(options, console))
    except SandboxError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        return 130
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


async def _run(options: argparse.Namespace, console: Console) -> int:
    # SIGTERM cancels the task as Ctrl-C does, so that a half-started sandbox is stopped.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    report = Reporter(console)
    if options.command == "prepare":
        return await _prepare(console, report)
    directory: Path = options.directory.absolute()
    match options.command:
        case "down":
            count = await stop_all(directory, progress=report)
            console.print(f"stopped {count} processes" if count else "nothing was running")
            return 0
        case "status":
            return _status(directory, console)
        case "pause" | "resume":
            return _signal(directory, options.cluster, options.command, console)
    if options.lower < 1:
        raise SandboxError("--lower: at least one lower cluster")
    real = options.real_node
    if real is None:
        real = options.command in {"demo", "helm"} and os.geteuid() == 0 and Path("/usr/bin/apt-get").exists()
    sandbox = Sandbox(
        lower=options.lower,
        directory=directory,
        kwok_nodes=options.kwok_nodes,
        real_node=real,
        upper_real_node=options.command == "helm",
        keep=True,
        progress=report,
    )
    async with sandbox:
        if options.command in {"demo", "helm"}:
            try:
                if options.command == "demo":
                    await demo.run(sandbox, console, report)
                else:
                    await _install(sandbox, console, report)
            except BaseException:
                await sandbox.close()
                raise
        else:
            attaching.save(sandbox, report)
            report("ready")
            _status(directory, console)
    return 0


async def _install(sandbox: Sandbox, console: Console, report: Reporter) -> None:
    """Install everything in the upper cluster with ``helm install``, as users do."""
    file = await helm.install(
        sandbox, report, lambda said: console.print(said, highlight=False, soft_wrap=True)
    )
    page = (
        f"kubectl -n {helm.NAMESPACE} port-forward deploy/{helm.DEMO_RELEASE} 8090   # http://127.0.0.1:8090/"
    )
    lines = [
        f". {file}      # kubectl, helm and virtual-node on the PATH, the upper cluster",
        "virtual-node status      # the virtual nodes are called as their clusters: lower1, lower2",
        f"helm test {helm.DEMO_RELEASE} --namespace {helm.NAMESPACE}",
        "kubectl create namespace demo",
        (
            "kubectl -n demo run hello --image=busybox:1.36 --labels=virtual-pod=true "
            """--overrides='{"spec":{"nodeSelector":{"type":"virtual-kubelet"}}}' -- sleep 3600"""
        ),
        "kubectl -n demo get pod hello -o wide",
        page,
    ]
    demo.try_next(console, lines)
    demo.try_fault(sandbox, console)


def _debian(report: Reporter) -> None:
    """Install Debian's packages that real nodes and tests need, and download the base of the image.

    Raises:
        SandboxError: they cannot be downloaded.
    """
    ensure_packages(report)
    # One test opens the web page, others run the completion scripts.
    missing = [] if chromium_here() else ["chromium", "fonts-dejavu-core"]
    missing += [shell for shell in ("zsh", "fish") if shutil.which(shell) is None]
    if missing:
        install(missing, report)
    try:
        build.ensure_base(progress=report)
    except BuildError as error:
        raise SandboxError(str(error)) from None


async def _prepare(console: Console, report: Reporter) -> int:
    wanted = [*CONTROL_PLANE, *SIMULATION, "helm"]
    if os.geteuid() == 0:
        wanted += [*NODE, "metrics-server", "dra-driver", f"kubectl-{OLD_KUBECTL[0]}", *services.PROGRAMS]
        wanted += map(apiserver, OTHER_KUBERNETES)  # tests/clusters/nodes/test_version_skew.py
        # In parallel: compiling needs the processors, packages need the network.
        found, _ = await asyncio.gather(
            binaries.ensure(wanted, progress=report), asyncio.to_thread(_debian, report)
        )
    else:
        found = await binaries.ensure(wanted, progress=report)
    for name, path in found.items():
        console.print(f"{name:<24} {path}", highlight=False, soft_wrap=True)
    return 0


def _signal(directory: Path, cluster: str, verb: str, console: Console) -> int:
    """Pause (SIGSTOP) or continue (SIGCONT) the API server of a cluster.

    Raises:
        SandboxError: the cluster's API server does not run.
    """
    found = running(directory)
    identity = found.get(f"{cluster}/kube-apiserver")
    if identity is None:
        names = sorted(name.partition("/")[0] for name in found if name.endswith("/kube-apiserver"))
        raise SandboxError(
            f"no cluster {cluster} runs in {directory}; there are: {', '.join(names) or 'none'}"
        )
    identity.signal(signal.SIGSTOP if verb == "pause" else signal.SIGCONT)
    console.print(f"the API server of {cluster} {'does not answer' if verb == 'pause' else 'answers again'}")
    return 0


def _status(directory: Path, console: Console) -> int:
    found = running(directory)
    if not found:
        console.print("nothing is running")
        return 1
    for name, identity in found.items():
        console.print(f"{identity.pid:>8}  {name}", highlight=False)
    for name, path in read_state(directory).get("clusters", {}).items():
        console.print(f"export KUBECONFIG={path}   # {name}", highlight=False, soft_wrap=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

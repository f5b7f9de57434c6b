"""The command: start clusters, run the suite twice, print the comparison."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hack.conformance import report, suite
from hack.conformance.images import made_images
from hack.conformance.report import Outcome
from hack.sandbox import Sandbox
from hack.sandbox.builds import binaries
from hack.sandbox.builds.packages import ensure_packages, install
from hack.sandbox.commands.cli import Reporter
from hack.sandbox.errors import SandboxError
from hack.sandbox.nodes.network import forward_node_ports
from hack.sandbox.nodes.network import run as run_program
from hack.sandbox.nodes.services import NodeServices

SIG_NODE = r"\[sig-node\].*\[Conformance\]"
_PROGRAMS = ("ginkgo", "e2e.test", "agnhost", "nonewprivs", "kubectl", "pause")
_LOWER_KUBELET = 10260
"""Port of the lower kubelet's API while the virtual node has its usual port."""
_PACKAGES = {"curl": "curl", "dig": "bind9-dnsutils", "nc": "netcat-openbsd", "iperf": "iperf"}
DEFAULT_OUTPUT = Path(__file__).resolve().parent.parent.parent / ".conformance"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 0 if ``--least`` percent of the tests that pass directly also pass through the virtual node."""
    parser = argparse.ArgumentParser(prog="python -m hack.conformance", description=__doc__)
    parser.add_argument("--focus", default=SIG_NODE, metavar="REGEX", help=f"tests to run ({SIG_NODE})")
    parser.add_argument(
        "--skip", default=suite.NEVER, metavar="REGEX", help=f"tests to leave out ({suite.NEVER})"
    )
    parser.add_argument("--procs", type=int, default=4, metavar="N", help="tests at a time (4)")
    parser.add_argument(
        "--least",
        type=float,
        default=95.0,
        metavar="PERCENT",
        help="percentage; exit code 1 if fewer pass (95)",
    )
    parser.add_argument(
        "--output", type=Path, default=DEFAULT_OUTPUT, metavar="DIR", help="logs and reports go there"
    )
    parser.add_argument(
        "--direct",
        type=Path,
        metavar="JSON",
        help="outcomes of an earlier direct run (direct-outcomes.json): run only through the virtual node",
    )
    parser.add_argument(
        "--directly", action="store_true", help="run only on the lower cluster, to see what fails there"
    )
    parser.add_argument(
        "--failed",
        action="store_true",
        help="with --direct: only tests that passed there and failed through the virtual node",
    )
    options = parser.parse_args(argv)
    console = Console()
    try:
        return asyncio.run(_run(options, console))
    except SandboxError as error:
        Console(stderr=True).print(f"[bold red]error:[/] {error}", highlight=False, soft_wrap=True)
        return 2
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130


async def _run(options: argparse.Namespace, console: Console) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    progress = Reporter(console)
    output: Path = options.output.absolute()
    output.mkdir(parents=True, exist_ok=True)
    await asyncio.to_thread(ensure_packages, progress)
    missing = sorted(package for tool, package in _PACKAGES.items() if shutil.which(tool) is None)
    if missing:
        await asyncio.to_thread(install, missing, progress)
    programs = await binaries.ensure(_PROGRAMS, progress=progress)
    selection = suite.Selection(focus=options.focus, skip=options.skip, processes=options.procs)
    direct: dict[str, Outcome] = {}
    if options.direct is not None:
        direct = _load(options.direct)
        if options.failed:
            _, lost = report.compare(direct, _load(output / "through-outcomes.json"))
            focus = "|".join(re.escape(outcome.name) for outcome in lost)
            selection = suite.Selection(focus=focus, skip=options.skip, processes=options.procs)
            direct = {outcome.name: direct[outcome.name] for outcome in lost}
    async with Sandbox(lower=1, real_node=True, directory=output / "sandbox", progress=progress) as sandbox:
        assert sandbox.real_node is not None
        progress("making the images of the suite")
        listed = await asyncio.to_thread(run_program, str(programs["e2e.test"]), "--list-images")
        wanted = made_images(listed.split(), binaries=programs)
        await asyncio.to_thread(sandbox.real_node.import_images, wanted)
        if not direct:
            progress("running the suite directly on the lower cluster")
            direct = await suite.run(
                selection,
                kubeconfig=sandbox.lower[0].kubeconfig,
                binaries=programs,
                directory=output,
                title="direct",
                progress=progress,
            )
            _save(output / "direct-outcomes.json", direct)
        if options.directly:
            console.print(report.summary(direct), highlight=False, markup=False, soft_wrap=True)
            return 0
        await _start_virtual_node(sandbox)
        progress("running the suite through the virtual node")
        through = await suite.run(
            selection,
            kubeconfig=sandbox.upper.kubeconfig,
            binaries=programs,
            directory=output,
            title="through",
            progress=progress,
        )
        _save(output / "through-outcomes.json", through)
        log = sandbox.directory / "virtual-node.log"
        if log.is_file():
            shutil.copy(log, output / "virtual-node.log")
    console.print(report.render(direct, through), highlight=False, markup=False, soft_wrap=True)
    passing, lost = report.compare(direct, through)
    return 0 if passing and 100 * (len(passing) - len(lost)) / len(passing) >= options.least else 1


async def _start_virtual_node(sandbox: Sandbox) -> None:
    """Start the upper cluster's only node: virtual and without a taint, because the suite's pods tolerate no taint.

    Its address is that of the lower node, where host ports are, and its kubelet API has the usual port, which tests name.
    Node ports at that address lead to a kube-proxy of the upper cluster. The lower cluster also gets the upper cluster's
    Service range.
    """
    (lower,) = sandbox.lower
    node, edge = sandbox.bridge, sandbox.add_namespace()
    assert node is not None
    assert sandbox.real_node is not None
    await sandbox.real_node.listen_on(_LOWER_KUBELET)
    forward_node_ports(node, edge)
    directory = sandbox.directory / "edge"
    directory.mkdir()
    proxy = NodeServices(
        sandbox.upper,
        node="virtual",
        bridge=edge,
        binaries=sandbox.binaries,
        directory=directory,
        dies_with_parent=True,
    )
    await lower.apply(
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": "upper"},
            "spec": {"cidrs": [sandbox.upper.service_cidr]},
        }
    )
    await lower.kubectl("wait", "--for=condition=Ready", "servicecidr/upper", "--timeout=60s", timeout=90)
    configuration: dict[str, Any] = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "ClusterSetConfiguration",
        "kubeconfig": str(sandbox.upper.kubeconfig),
        "kubelet": {"nodeIP": node.node_address},
        "clusters": [
            {
                "name": lower.name,
                "kubeconfig": str(lower.kubeconfig),
                "nodeName": "virtual",
                "taints": [],
                # The suite needs what tenants are not granted by default.
                "policy": {
                    "preset": "privileged",
                    "controlPlane": True,
                    "priorityClasses": ["system-*"],
                    "schedulerNames": ["*"],
                    "runtimeClasses": ["*"],
                    "annotations": {"deny": []},
                },
                "namespaces": {"adopt": ["default"]},
                "services": {"clusterIP": "same"},
                "onUnschedulable": "Reject",
            }
        ],
    }
    file = sandbox.directory / "virtual-node.yaml"
    file.write_text(json.dumps(configuration, indent=1), encoding="utf-8")
    flags = ["--config", str(file), "--log-level=debug", "--log-format=json"]
    argv = node.inside([sys.executable, "-m", "virtual_node", *flags])
    await sandbox.start_process("virtual-node", argv)
    await sandbox.upper.kubectl("wait", "--for=create", "node/virtual", "--timeout=60s", timeout=90)
    await sandbox.upper.kubectl("wait", "--for=condition=Ready", "node/virtual", "--timeout=60s", timeout=90)
    await proxy.start()


def _save(path: Path, found: dict[str, Outcome]) -> None:
    rows = [
        {"name": outcome.name, "state": outcome.state, "seconds": outcome.seconds, "why": outcome.why}
        for outcome in found.values()
    ]
    path.write_text(json.dumps(rows, indent=1), encoding="utf-8")


def _load(path: Path) -> dict[str, Outcome]:
    try:
        return {row["name"]: Outcome(**row) for row in json.loads(path.read_bytes())}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise SandboxError(f"{path}: not the outcomes of an earlier run: {error}") from None

"""The chart in a sandbox: the project's image and kube-scheduler's on the upper node, registered lower clusters, helm.

The commands are those of users, such as ``virtual-node lower-cluster join``, ``helm install`` and ``helm test``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hack.image import build
from hack.sandbox.builds import binaries, images
from hack.sandbox.builds.programs import KUBERNETES_VERSION, Progress
from hack.sandbox.cluster import Cluster
from hack.sandbox.command import Completed, command
from hack.sandbox.commands import environment
from hack.sandbox.errors import SandboxError
from hack.sandbox.sandbox import Sandbox

CHART = Path(__file__).resolve().parents[3] / "charts" / "virtual-node"
NAMESPACE = "virtual-node-system"
RELEASE = "vn"
"""The release of tests: a name from which the chart derives other names, such as ``vn-virtual-node``."""
IMAGE = "virtual-node-image.tar"
"""Name of the image's archive in the sandbox's folder."""
DEMO_RELEASE = "virtual-node"
"""The release of ``make demo-helm``: the name in the documentation, so that its commands can be pasted."""


async def load_images(sandbox: Sandbox, archive: Path | None = None) -> None:
    """Import the image of the current code, and kube-scheduler's, into the upper node.

    Args:
        sandbox: clusters with a real node in the upper one.
        archive: the image, if it is built already.

    Raises:
        SandboxError: the sandbox has no upper node.
        BuildError: the image cannot be built here.
    """
    node = sandbox.upper_node
    if node is None:
        raise SandboxError("this sandbox has no real node in its upper cluster")
    if archive is None:
        archive = sandbox.directory / IMAGE
        await asyncio.to_thread(build.build, archive)
    await asyncio.to_thread(node.import_archive, archive)
    scheduler = images.Image(
        tags=(f"registry.k8s.io/kube-scheduler:v{KUBERNETES_VERSION}",),
        files={"usr/local/bin/kube-scheduler": sandbox.binaries["kube-scheduler"]},
        entrypoint=("/usr/local/bin/kube-scheduler",),
    )
    await asyncio.to_thread(node.import_images, [scheduler])


async def register(sandbox: Sandbox, cluster: Cluster) -> None:
    """Run ``virtual-node lower-cluster register``, which creates a lower account and a Secret with its kubeconfig.

    Raises:
        SandboxError: the command fails; quotes its output.
    """
    await command(
        [
            *(sys.executable, "-m", "virtual_node", "lower-cluster", "register", f"--name={cluster.name}"),
            f"--client-kubeconfig={cluster.kubeconfig}",
            f"--kubeconfig={sandbox.upper.kubeconfig}",
            f"--namespace={NAMESPACE}",
        ]
    )


async def join(sandbox: Sandbox, cluster: Cluster, *, program: Path) -> str:
    """Run ``virtual-node lower-cluster join``; return its output.

    Raises:
        SandboxError: the command fails; quotes its output.
    """
    done = await command(
        [
            *(sys.executable, "-m", "virtual_node", "lower-cluster", "join", cluster.name),
            *(f"--client-kubeconfig={cluster.kubeconfig}", f"--kubeconfig={sandbox.upper.kubeconfig}"),
            f"--namespace={NAMESPACE}",
        ],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        timeout=700,
    )
    return done.stdout


async def install(sandbox: Sandbox, report: Progress, show: Callable[[str], None]) -> Path:
    """Install the chart and join every lower cluster, as users do; return the file for a shell to source.

    Raises:
        SandboxError: a step fails.
        BuildError: the image cannot be built here.
    """
    report("building our image and loading it into the real nodes")
    await load_images(sandbox)
    if sandbox.real_node is not None:
        # The documentation's workers of a Swarm run this image in a lower cluster.
        await asyncio.to_thread(sandbox.real_node.import_archive, sandbox.directory / IMAGE)
    program = await binaries.helm(progress=report)
    report(
        f"helm install {DEMO_RELEASE} charts/virtual-node --namespace {NAMESPACE} --create-namespace --wait"
    )
    await helm(
        sandbox, "install", DEMO_RELEASE, str(CHART), f"--namespace={NAMESPACE}", "--create-namespace", "--wait",
        program=program,
    )  # fmt: skip
    for cluster in sandbox.lower:
        report(f"virtual-node lower-cluster join {cluster.name} --client-kubeconfig {cluster.kubeconfig}")
        show(await join(sandbox, cluster, program=program))
    return environment.write(sandbox, programs={"helm": program})


def values(sandbox: Sandbox, **more: Any) -> dict[str, Any]:
    """Return values of the chart for every lower cluster of the sandbox."""
    clusters = [
        {"name": cluster.name, "kubeconfigSecret": {"name": f"virtual-node-{cluster.name}"}}
        for cluster in sandbox.lower
    ]
    return {"virtualNode": {"clusters": clusters}, **more}


async def helm(
    sandbox: Sandbox,
    *arguments: str,
    values: Mapping[str, Any] | None = None,
    check: bool = True,
    program: Path | None = None,
) -> Completed:
    """Run the real helm against the upper cluster.

    Args:
        sandbox: gives the upper cluster.
        arguments: of helm.
        values: written to a file that helm reads.
        check: whether a failure is an error.
        program: helm binary; None: the project's build, which tests use.

    Raises:
        SandboxError: it failed, when ``check`` is set; quotes its output.
    """
    program = program or (await binaries.ensure(["helm"]))["helm"]
    argv = [str(program), "--kubeconfig", str(sandbox.upper.kubeconfig), *arguments]
    if values is not None:
        file = sandbox.directory / "values.json"
        file.write_text(json.dumps(values), encoding="utf-8")
        argv += ["--values", str(file)]
    environment = {**os.environ, "HELM_CACHE_HOME": str(sandbox.directory / "helm")}
    return await command(argv, env=environment, check=check, timeout=600)

"""The chart in a sandbox: our image and the scheduler's on the upper node, lower clusters registered, helm.

What users do on their clusters is done here in the same words: ``virtual-node lower-cluster register``,
``helm install``, ``helm test``, ``helm uninstall``.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hack.image import build
from hack.sandbox import binaries, images
from hack.sandbox.cluster import Cluster
from hack.sandbox.command import Completed, command
from hack.sandbox.errors import SandboxError
from hack.sandbox.programs import KUBERNETES_VERSION
from hack.sandbox.sandbox import Sandbox

CHART = Path(__file__).resolve().parents[2] / "charts" / "virtual-node"
NAMESPACE = "virtual-node-system"
RELEASE = "vn"


async def load_images(sandbox: Sandbox, *, name: str = "") -> None:
    """Give the upper node our image, as the code is now, and kube-scheduler's.

    Raises:
        SandboxError: the sandbox has no upper node.
        BuildError: the image cannot be built here.
    """
    node = sandbox.upper_node
    if node is None:
        raise SandboxError("this sandbox has no real node in its upper cluster")
    archive = sandbox.directory / "virtual-node-image.tar"
    await asyncio.to_thread(build.build, archive, name=name)
    await asyncio.to_thread(node.import_archive, archive)
    archive.unlink()
    scheduler = images.Image(
        tags=(f"registry.k8s.io/kube-scheduler:v{KUBERNETES_VERSION}",),
        files={"usr/local/bin/kube-scheduler": sandbox.binaries["kube-scheduler"]},
        entrypoint=("/usr/local/bin/kube-scheduler",),
    )
    await asyncio.to_thread(node.import_images, [scheduler])


async def register(sandbox: Sandbox, cluster: Cluster, *, namespace: str = NAMESPACE) -> None:
    """``virtual-node lower-cluster register``: a least-privilege account below, its kubeconfig in a Secret above.

    Raises:
        SandboxError: the command fails; quotes what it said.
    """
    await command(
        [
            *(sys.executable, "-m", "virtual_node", "lower-cluster", "register", f"--name={cluster.name}"),
            f"--client-kubeconfig={cluster.kubeconfig}",
            f"--kubeconfig={sandbox.upper.kubeconfig}",
            f"--namespace={namespace}",
        ]
    )


def values(sandbox: Sandbox, **more: Any) -> dict[str, Any]:
    """Values of the chart for every lower cluster of the sandbox."""
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
    timeout: float = 600,  # noqa: ASYNC109 - of the command
) -> Completed:
    """Run the real helm against the upper cluster.

    Raises:
        SandboxError: it failed, when ``check`` is set; quotes what it said.
    """
    program = (await binaries.ensure(["helm"]))["helm"]
    argv = [str(program), "--kubeconfig", str(sandbox.upper.kubeconfig), *arguments]
    if values is not None:
        file = sandbox.directory / "values.json"
        file.write_text(json.dumps(values), encoding="utf-8")
        argv += ["--values", str(file)]
    environment = {**os.environ, "HELM_CACHE_HOME": str(sandbox.directory / "helm")}
    return await command(argv, env=environment, check=check, timeout=timeout)

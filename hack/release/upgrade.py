"""Upgrades the release of a tag to the current source: image and chart of both, by Helm, on real clusters, under pods."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hack.image import build
from hack.image.commands import BuildError
from hack.image.python_packages import SOURCE
from hack.sandbox import Sandbox
from hack.sandbox.builds.images import architecture
from hack.sandbox.builds.programs import Progress
from hack.sandbox.command import command
from hack.sandbox.commands import demo, helm

_SECONDS = 600.0
_RELEASE = ("virtual-node", f"--namespace={helm.NAMESPACE}", "--wait", "--timeout=270s")
_PODS = ("-n", "demo", "get", "pods", "-l", "app=hello", "-o", "json")


def run(tag: str) -> None:
    """Install the release of a tag, start pods, upgrade to the current source and roll back.

    Raises:
        BuildError: a container was restarted or replaced, or the current source has the version of the tag.
        SandboxError: a step fails; quotes its output.
    """
    asyncio.run(_run(tag, lambda line: print(line, flush=True)))


async def _run(tag: str, report: Progress) -> None:
    with tempfile.TemporaryDirectory() as work:
        earlier = Path(work) / "earlier"
        await command(["git", "clone", "--quiet", "--branch", tag, SOURCE, earlier])
        chart = earlier / "charts" / "virtual-node"
        version = yaml.safe_load((chart / "Chart.yaml").read_text(encoding="utf-8"))["version"]
        if version == build.version():
            raise BuildError(f"pyproject.toml has version {version}, as {tag}: set the next version first")
        report(f"building the images of {version} and {build.version()}")
        source = {**os.environ, "PYTHONPATH": str(earlier)}
        image = [sys.executable, "-m", "hack.release", "image"]
        await command(image, cwd=earlier, env=source, timeout=_SECONDS)
        current = Path(work) / "current.tar"
        await asyncio.to_thread(build.build, current)
        async with Sandbox(
            lower=1, real_node=True, upper_real_node=True, kwok_nodes=0, progress=report
        ) as sandbox:
            assert sandbox.upper_node is not None
            await helm.load_images(sandbox, earlier / "dist" / f"image-{architecture()}.tar")
            await asyncio.to_thread(sandbox.upper_node.import_archive, current)
            await _upgrade(sandbox, chart, source, report)


async def _upgrade(sandbox: Sandbox, chart: Path, source: Mapping[str, str], report: Progress) -> None:
    (lower,) = sandbox.lower
    await sandbox.upper.kubectl("create", "namespace", helm.NAMESPACE)
    arguments: tuple[str, ...] = (f"--name={lower.name}", f"--client-kubeconfig={lower.kubeconfig}")
    arguments += (f"--kubeconfig={sandbox.upper.kubeconfig}", f"--namespace={helm.NAMESPACE}")
    register = [sys.executable, "-m", "virtual_node", "lower-cluster", "register", *arguments]
    await command(register, cwd=chart.parents[1], env=source)
    values = helm.values(sandbox)
    report("installing the earlier chart")
    await helm.helm(sandbox, "install", *_RELEASE, str(chart), values=values)
    await sandbox.upper.kubectl("wait", "--for=condition=Ready", f"node/{lower.name}", "--timeout=120s")
    await sandbox.upper.apply(*demo.objects(lower.name))
    await _ready(sandbox)
    before = await _containers(sandbox)
    for verb, more in (("upgrade", (str(helm.CHART),)), ("rollback", ()), ("upgrade", (str(helm.CHART),))):
        report(f"helm {verb}")
        await helm.helm(sandbox, verb, *_RELEASE, *more, values=values if more else None)
        await _ready(sandbox)
        if (after := await _containers(sandbox)) != before:
            raise BuildError(f"helm {verb} changed the containers of pods: {before} became {after}")
    await sandbox.upper.kubectl("-n", "demo", "scale", "deployment/hello", "--replicas=3")
    await _ready(sandbox)
    for pod in await _containers(sandbox):
        await sandbox.upper.kubectl("-n", "demo", "logs", pod)
        await sandbox.upper.kubectl("-n", "demo", "exec", pod, "--", "true")
    report("no container was restarted, and new pods run")


async def _ready(sandbox: Sandbox) -> None:
    await sandbox.upper.kubectl("-n", "demo", "rollout", "status", "deployment/hello", "--timeout=110s")


async def _containers(sandbox: Sandbox) -> dict[str, Any]:
    """Return pod → ids and restarts of its containers."""
    pods = json.loads((await sandbox.upper.kubectl(*_PODS)).stdout)["items"]
    return {
        pod["metadata"]["name"]: [
            (one["containerID"], one["restartCount"]) for one in pod["status"]["containerStatuses"]
        ]
        for pod in pods
    }

"""The doctor on clusters of its own, which the tests break; and the commands as kubectl's plugin."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.components import scheduling
from hack.sandbox.process import Process
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, node_ready, ready
from virtual_node.cli import COMMANDS
from virtual_node.config import program

pytestmark = pytest.mark.e2e

NODE = "vn-doctor"
ROOT = Path(__file__).parents[3]


class Installation:
    """A sandbox with one virtual node."""

    def __init__(self, sandbox: Sandbox, process: Process) -> None:
        self.sandbox = sandbox
        self.process = process

    async def doctor(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """Return exit code and links by name."""
        code, out = await self.run("doctor", "-o", "json", *arguments)
        found = json.loads(out)
        return code, {"broken": found["brokenLink"], **{one["name"]: one for one in found["links"]}}

    async def run(self, *arguments: str) -> tuple[int, str]:
        """Return exit code and output of ``virtual-node``."""
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "virtual_node", *arguments, f"--kubeconfig={self.sandbox.upper.kubeconfig}",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installation(simulated: Lend) -> AsyncIterator[Installation]:
    """A healthy system: one simulated lower cluster, one virtual node."""
    async with simulated(lower=1, kwok_nodes=2) as sandbox:
        process = await sandbox.start_virtual_node(
            f"--client-kubeconfig={sandbox.lower[0].kubeconfig}", f"--nodename={NODE}", "--log-level=debug",
            "--adopt-namespaces=default",
            env={"VKUBELET_POD_IP": LOOPBACK, "KUBELET_PORT": "0"},
        )  # fmt: skip
        upper = sandbox.upper
        await node_ready(upper, NODE)
        yield Installation(sandbox, process)


async def test_a_healthy_system_has_no_broken_link(installation: Installation):
    """Every link is ok or not installed, and the text ends with one line."""
    lower = f"--client-kubeconfig={installation.sandbox.lower[0].kubeconfig}"
    # The API server proxies to no loopback address; a pod's log takes the same way to the kubelet API.
    await create(installation.sandbox.upper, "default", pod("well", "sleep 3600", node=NODE))
    await ready(installation.sandbox.upper, "default", "well")

    links: dict[str, Any] = {}

    async def healthy() -> bool:
        code, found = await installation.doctor(lower)
        links.update(found)
        return code == 0

    # The Lease comes with the first renewal, moments after the node.
    await eventually(healthy, what="all links hold")
    assert links["kubeletApi"]["state"] == "ok"
    assert {name for name, link in links.items() if link and name != "broken" and link["state"] == "skipped"} == {
        "components", "webhook", "mutation", "descheduler", "swarms",
    }  # fmt: skip
    code, out = await installation.run("doctor")
    # The upper API server of this sandbox listens only on loopback.
    warning = "Every link holds, with a warning: Kubernetes API of lower pods."
    assert (code, out.splitlines()[-1]) == (0, warning)


async def test_a_pod_without_a_toleration_is_found(installation: Installation):
    """The broken link is the one that the pod waits at."""
    upper = installation.sandbox.upper
    lacking = pod("lacking", "sleep 3600", node=NODE)
    lacking["spec"]["tolerations"] = []
    await create(upper, "default", lacking)

    async def untolerated() -> bool:
        code, links = await installation.doctor()
        return (code, links["broken"]) == (1, "taints") and "virtual-kubelet.io/provider" in links["taints"][
            "detail"
        ]

    await eventually(untolerated, what="the taint that nobody tolerates")
    await upper.kubectl("delete", "pod", "lacking", "--wait=true")


async def test_a_dry_run_pod_proves_the_webhook(installation: Installation):
    """With the webhook a labelled dry-run pod is changed; without its process the link reports what is missing."""
    process = await scheduling.start_webhook(installation.sandbox)

    async def proved() -> tuple[int, str, str]:
        code, links = await installation.doctor()
        return code, links["webhook"]["state"], links["mutation"]["state"]

    await becomes(proved, (0, "ok", "ok"), what="the webhook is proved")
    await process.stop()
    code, links = await installation.doctor()
    assert (code, links["broken"]) == (1, "mutation")
    assert "nothing listens there" in links["mutation"]["detail"]
    await installation.sandbox.upper.kubectl(
        "delete", "mutatingwebhookconfigurations,validatingwebhookconfigurations", "virtual-node-webhook"
    )


async def test_kubectl_runs_the_plugin(installation: Installation, tmp_path: Path):
    """A real kubectl finds it on the PATH, passes the arguments, and completes them."""
    for file, function in ((program.PLUGIN_FILE, "main"), (program.COMPLETION_FILE, "complete")):
        script = tmp_path / file
        script.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"from virtual_node.cli import {function}\nsys.exit({function}())\n",
            encoding="utf-8",
        )
        script.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "KUBECONFIG": str(installation.sandbox.upper.kubeconfig),
    }

    async def kubectl(*arguments: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            installation.sandbox.binaries["kubectl"], *arguments, env={**os.environ, **environment},
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        out, _ = await process.communicate()
        return process.returncode or 0, out.decode()

    code, out = await kubectl("virtual-node", "status")
    assert (code, NODE in out) == (0, True), out
    code, out = await kubectl("virtual-node")
    assert (code, out.splitlines()[0]) == (0, "usage: kubectl virtual-node COMMAND [FLAGS]")
    code, out = await kubectl("virtual-node", "statsu")
    assert code == 2
    assert out.startswith("kubectl virtual-node: unknown command 'statsu'")
    code, out = await kubectl("__complete", "virtual-node", "sta")
    # kubectl writes warnings to stderr.
    assert f"status\t{COMMANDS['status'].purpose}" in out.splitlines(), out
    code, out = await kubectl("__complete", "virtual-node", "status", "-o", "")
    formats = ["table", "wide", "json", "yaml", "name"]
    assert [line for line in out.splitlines() if line in formats] == formats, out

    async def names() -> bool:
        """Completion has a limit of three seconds, which a busy machine may exceed once."""
        completions = [
            (await kubectl("__complete", "virtual-node", *words, ""))[1]
            for words in (["status"], ["doctor", "-n"], ["diagnose", "node"])
        ]
        return (
            f"{NODE}\tlower cluster" in completions[0]
            and "kube-system" in completions[1]
            and NODE in completions[2]
        )

    await eventually(names, what="the names of virtual nodes and of namespaces are completed")


async def test_a_dead_process_is_the_broken_link_and_later_faults_are_reported(installation: Installation):
    """The Lease of a virtual node whose process has ended expires, and a pod waits for a scheduler that does not run."""
    await create(
        installation.sandbox.upper, "default", pod("orphan", "sleep 3600", node=NODE, schedulerName="nobody")
    )
    await installation.process.stop()

    async def found() -> bool:
        code, links = await installation.doctor()
        return code == 1 and links["broken"] == "nodeReady" and NODE in links["nodeReady"]["detail"]

    await eventually(found, what="nodeReady is the broken link")

    async def unscheduled() -> bool:
        _, links = await installation.doctor()
        return links["scheduler"]["state"] == "broken" and "nobody" in links["scheduler"]["detail"]

    await eventually(unscheduled, what="no scheduler named nobody")
    code, out = await installation.run("doctor")
    assert code == 1
    assert out.splitlines()[-1].startswith("The broken link: virtual nodes Ready, leases fresh")
    assert out.count("Node vn-doctor: its Lease") == 1


async def test_an_unreachable_upper_cluster_is_the_broken_link(installation: Installation):
    """The first link is broken and the others are skipped."""
    await installation.sandbox.upper.apiserver.kill()
    code, links = await installation.doctor()
    assert (code, links["broken"]) == (1, "upperApi")
    assert {link["state"] for name, link in links.items() if name not in {"broken", "upperApi"}} == {
        "skipped"
    }

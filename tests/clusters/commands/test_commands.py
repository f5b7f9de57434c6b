"""The user commands, on healthy and on broken clusters."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller_runtime.process.program import version
from hack.sandbox import Cluster, Sandbox
from tests.clusters.nodes.test_metrics import raw
from tests.clusters.virtual_nodes import REAL, SIMULATED, pod
from tests.waiting import PATIENCE, becomes, create, eventually, ready
from tests.workloads import deployment
from virtual_node.node_summary import PATH

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]


async def command(cluster: Cluster, *arguments: str, kubeconfig: Path | None = None) -> tuple[int, str]:
    """Return exit code and output of ``virtual-node``; piped, as a program would read it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", *arguments, f"--kubeconfig={kubeconfig or cluster.kubeconfig}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def test_status_shows_every_virtual_node(sandbox: Sandbox, upper: Cluster, namespace):
    """One plain line each in a pipe, and everything as JSON."""
    await create(upper, namespace, pod("web", "sleep 3600", node=SIMULATED))
    await ready(upper, namespace, "web")
    code, out = await command(upper, "status")
    lines = out.splitlines()
    assert code == 0
    assert lines[0].split()[:3] == ["NODE", "READY", "CLUSTER"]
    assert {line.split()[0] for line in lines[1:]} >= {REAL, SIMULATED}
    assert "\x1b" not in out
    code, out = await command(upper, "status", "-o", "json")
    nodes = {node["name"]: node for node in json.loads(out)["nodes"]}
    assert nodes[SIMULATED]["pods"]["running"] >= 1
    assert nodes[SIMULATED]["heartbeatSeconds"] < 60


async def test_the_process_answers_what_status_lists(upper: Cluster, namespace: str):
    """The same numbers, and names of faulty pods only for the node that is asked.

    ``status`` lists here, because the node proxy of the API server refuses loopback addresses.
    """
    asks = {"resources": {"requests": {"cpu": "250m", "memory": "64Mi"}}}
    await create(upper, namespace, pod("web", "sleep 3600", node=SIMULATED, container=asks))
    await create(upper, namespace, pod("image", "true", container={"image": "example.invalid/none:1"}))
    await ready(upper, namespace, "web")

    async def compared() -> dict[str, bool]:
        answers = {
            node: json.loads(await raw(upper, node, PATH.lstrip("/")))["nodes"] for node in (REAL, SIMULATED)
        }
        _, out = await command(upper, "status", "-o", "json")
        listed = {node["name"]: node["pods"] for node in json.loads(out)["nodes"]}
        named = [name for one in answers[REAL][REAL]["findings"] for name in one["names"]]
        return {
            "same pods": all(
                listed[node] == {key: answer[node][key] for key in ("total", "running", "trouble")}
                for answer in answers.values()
                for node in (REAL, SIMULATED)
            ),
            "requests": answers[REAL][SIMULATED]["used"]["cpu"] >= 250,
            "lag": bool(answers[REAL][SIMULATED]["lag"]),
            "the faulty pod is named": f"{namespace}/image" in named,
            "not to who asks another node": answers[SIMULATED][REAL]["findings"] is None,
        }

    await becomes(compared, dict.fromkeys(await compared(), True), what="the answer is that of the list")


async def test_diagnose_finds_what_blocks_a_pod(sandbox: Sandbox, upper: Cluster, namespace):
    """A missing ConfigMap, an unknown image, a selector that the webhook did not move, a crash."""
    missing = pod("missing", "sleep 3600", container={"envFrom": [{"configMapRef": {"name": "nowhere"}}]})
    image = pod("image", "sleep 3600", container={"image": "example.invalid/none:1"})
    crash = pod("crash", "echo last words; exit 7")
    selector = pod("selector", "sleep 3600")
    selector["spec"]["nodeSelector"] = {"gpu": "yes"}
    fine = pod("fine", "sleep 3600", node=SIMULATED)
    await create(upper, namespace, missing, image, crash, selector, fine)
    await ready(upper, namespace, "fine")
    expected = {
        "missing": 'configmap "nowhere" not found',
        "image": "cannot pull example.invalid/none:1",
        "crash": "last words",
        "selector": "not labelled virtual-pod=true",
    }
    for name, expected_text in expected.items():

        async def found(name: str = name, expected_text: str = expected_text) -> bool:
            code, out = await command(upper, "diagnose", "pod", f"{namespace}/{name}")
            return code == 1 and expected_text in out

        await eventually(found, what=f"{name}: {expected_text}")
    code, out = await command(upper, "diagnose", "pod", f"{namespace}/fine")
    assert (code, "nothing is wrong" in out) == (0, True)
    code, out = await command(upper, "diagnose", "pod", f"{namespace}/nobody")
    assert (code, "there is no pod" in out) == (2, True)


async def test_diagnoses_a_deployment_and_a_virtual_node_by_name(sandbox: Sandbox, upper: Cluster, namespace):
    """As kubectl names them; the release is in the node's label, the lower version where kubelets report theirs."""
    web = pod("web", "sleep 3600", node=SIMULATED, terminationGracePeriodSeconds=1)
    await create(upper, namespace, deployment(web, replicas=2))

    async def verdict() -> tuple[int, bool]:
        code, out = await command(upper, "diagnose", "deploy/web", "-n", namespace)
        return code, "Nothing is wrong with its 2 pods." in out

    await becomes(verdict, (0, True), what="a verdict on the Deployment")

    async def of_node() -> int:
        return (await command(upper, "diagnose", "node", SIMULATED))[0]

    await becomes(of_node, 0, what="a verdict on the virtual node")
    code, out = await command(upper, "status", SIMULATED, "-o", "json")
    (node,) = json.loads(out)["nodes"]
    assert (code, node["release"]) == (0, version())
    assert node["version"].startswith("v1.")


async def test_commands_work_with_few_rights(sandbox: Sandbox, upper: Cluster, namespace, tmp_path):
    """Nodes and one namespace: status shows Ready, diagnose has its verdict, and the missing rights are named."""
    account = f"--serviceaccount={namespace}:dev"
    await upper.kubectl("-n", namespace, "create", "serviceaccount", "dev")
    await upper.kubectl("-n", namespace, "create", "rolebinding", "dev", "--clusterrole=view", account)
    await upper.kubectl("create", "clusterrole", namespace, "--verb=get,list", "--resource=nodes")
    await upper.kubectl("create", "clusterrolebinding", namespace, f"--clusterrole={namespace}", account)
    token = (await upper.kubectl("-n", namespace, "create", "token", "dev")).stdout.strip()
    whole = yaml.safe_load(upper.kubeconfig.read_text(encoding="utf-8"))
    whole["users"] = [{"name": one["name"], "user": {"token": token}} for one in whole["users"]]
    dev_kubeconfig = tmp_path / "dev"
    dev_kubeconfig.write_text(yaml.safe_dump(whole), encoding="utf-8")
    await create(upper, namespace, pod("image", "sleep 1", container={"image": "example.invalid/none:1"}))

    async def status() -> tuple[int, bool, bool]:
        code, out = await command(upper, "status", kubeconfig=dev_kubeconfig)
        return code, "kubectl auth can-i list pods --all-namespaces" in out, SIMULATED in out

    await becomes(status, (0, True, True), what="what may be seen of the virtual nodes")

    async def diagnosed() -> tuple[int, bool, bool]:
        code, out = await command(upper, "diagnose", "pod/image", "-n", namespace, kubeconfig=dev_kubeconfig)
        return code, "cannot pull example.invalid/none:1" in out, "kubectl auth can-i get leases" in out

    await becomes(diagnosed, (1, True, True), what="a verdict without all rights")
    code, out = await command(upper, "diagnose", "pod/x", "-n", "kube-system", kubeconfig=dev_kubeconfig)
    assert (code, "kubectl auth can-i get pods --namespace=kube-system" in out) == (2, True)
    for kind in ("clusterrolebinding", "clusterrole"):
        await upper.kubectl("delete", kind, namespace)


async def test_status_watches_until_it_is_interrupted(sandbox: Sandbox, upper: Cluster, namespace):
    """A new pod is a line; Ctrl-C is no error."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", "status", SIMULATED, "--watch", f"--kubeconfig={upper.kubeconfig}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, preexec_fn=_interruptible,
    )  # fmt: skip
    assert process.stdout is not None

    async def running() -> int:
        assert process.stdout is not None
        cells = (await process.stdout.readline()).decode().split()
        return int(cells[4].partition("/")[0])

    try:
        async with asyncio.timeout(PATIENCE):
            assert (await process.stdout.readline()).split()[0] == b"NODE"
            before = await running()
            await create(upper, namespace, pod("web", "", node=SIMULATED))
            while await running() <= before:
                pass
            process.send_signal(signal.SIGINT)
            _, err = await process.communicate()
        assert (process.returncode, err) == (130, b"")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def _interruptible() -> None:
    """A shell's background job, as CI may be, ignores SIGINT; children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


async def test_unknown_commands_get_a_suggestion(upper: Cluster):
    code, out = await command(upper, "statsu")
    assert code == 2
    assert "did you mean status?" in out


async def test_register_makes_an_account_that_suffices(sandbox: Sandbox, upper: Cluster, tmp_path):
    """The kubeconfig passes every check of the lower cluster, and has only the rights of the table."""
    lower = sandbox.lower[1]
    code, out = await command(
        upper, "lower-cluster", "register", "--name=paris", f"--client-kubeconfig={lower.kubeconfig}"
    )
    assert code == 0, out
    secret = json.loads(
        (await upper.kubectl("-n", "kube-system", "get", "secret", "virtual-node-paris", "-o", "json")).stdout
    )
    for name, value in secret["data"].items():  # as a volume has them
        (tmp_path / name).write_bytes(base64.b64decode(value))
    file = tmp_path / "kubeconfig"

    async def wrong() -> list[dict[str, Any]]:
        _, out = await command(
            upper, "check", f"--client-kubeconfig={file}", "--nodename=vn-paris", "-o", "json"
        )
        return [one for one in json.loads(out)["findings"] if not one["ok"] and one["cluster"] != "upper"]

    # An API server applies new rights a moment after they are written.
    await becomes(wrong, [], what="every right is granted")
    done = await lower.kubectl(
        "auth", "can-i", "delete", "deployments.apps", "--as=system:serviceaccount:virtual-node:virtual-node",
        check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "no"
    code, out = await command(
        upper, "lower-cluster", "register", "--name=paris", f"--client-kubeconfig={lower.kubeconfig}"
    )
    assert code == 0, out

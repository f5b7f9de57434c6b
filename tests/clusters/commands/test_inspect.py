"""``virtual-node inspect`` on real clusters: no finding in a healthy system, and every planted fault is found."""

from __future__ import annotations

import asyncio
import functools
import json
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from clusterset.model.names import SWARMS
from clusterset.model.rights import INSPECTION_HISTORY
from controller_runtime import rights
from controller_runtime.rights import Right, resolved
from hack.chart.swarm import definition
from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from hack.sandbox.commands.demo import configuration
from hack.sandbox.ports import free_ports
from hack.sandbox.process import Process
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready
from virtual_node.config import file as config_file
from virtual_node.rights import operator
from virtual_node.rights.daemon import LOWER
from virtual_node.rights.daemon import upper as upper_rights

pytestmark = pytest.mark.e2e
NODE = "vn-lower1"
SPACE = "inspected"


@functools.cache
def page_address() -> str:
    """Address of the virtual-node process's page."""
    return f"{LOOPBACK}:{free_ports(1)[0]}"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def small(simulated: Lend) -> AsyncIterator[tuple[Sandbox, Process]]:
    """One lower cluster of two simulated nodes and its virtual node, which the tests may break."""
    async with simulated(lower=1, kwok_nodes=2) as running:
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(configuration(running)), encoding="utf-8")
        process = await running.start_virtual_node("--config", str(file), f"--web-addr={page_address()}")
        upper = running.upper
        await node_ready(upper, NODE)
        await make_namespace(upper, SPACE)
        await upper.apply(definition())
        await upper.kubectl("wait", "--for=condition=established", f"crd/{SWARMS.qualified}")
        settings = {
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"colour": "blue"},
        }  # fmt: skip
        web = pod(
            "web", "sleep 3600", node=NODE, container={"envFrom": [{"configMapRef": {"name": "settings"}}]}
        )
        await create(upper, SPACE, settings, web)
        await ready(upper, SPACE, "web")
        yield running, process


async def inspect(sandbox: Sandbox, *arguments: str) -> tuple[int, str]:
    """Return exit code and output of ``virtual-node inspect``, with the daemon's own configuration."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", "inspect", f"--config={sandbox.directory / 'virtual-node.yaml'}",
        *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    out, _ = await process.communicate()
    return process.returncode or 0, out.decode()


async def command(sandbox: Sandbox, *words: str) -> tuple[int, Any]:
    """Return exit code and data of a command that reads only the upper cluster."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "virtual_node", *words, "-o", "json", f"--kubeconfig={sandbox.upper.kubeconfig}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await process.communicate()
    assert out, error.decode()
    return process.returncode or 0, json.loads(out)


async def page(part: str = "health") -> dict[str, Any]:
    """Return a part of the live page, by default the verdict."""
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"http://{page_address()}/api/state") as answer,
    ):
        found: dict[str, Any] = (await answer.json())[part]
        return found


async def verdicts(sandbox: Sandbox) -> dict[str, Any]:
    """Return what each tool reports: page and status kinds of faults, doctor exit code and broken link, inspect its findings."""
    shown = await page()
    _, status = await command(sandbox, "status")
    code, doctor = await command(sandbox, "doctor")
    _, found = await findings(sandbox)
    checks = {check for (check, _, _), one in found.items() if one["severity"] != "info"}
    return {
        "page": (shown["verdict"], {fault["kind"] for fault in shown["faults"]}),
        "status": (status["health"]["verdict"], {fault["kind"] for fault in status["health"]["faults"]}),
        "doctor": (code, doctor["brokenLink"]),
        "inspect": checks,
    }


HEALTHY = {"page": ("healthy", set()), "status": ("healthy", set()), "doctor": (0, None), "inspect": set()}


async def findings(
    sandbox: Sandbox, *arguments: str
) -> tuple[int, dict[tuple[str, str, str], dict[str, Any]]]:
    """Return exit code, and the findings by check, kind and object."""
    code, out = await inspect(sandbox, "-o", "json", *arguments)
    report = json.loads(out)
    return code, {(one["check"], one["kind"], one["object"]): one for one in report["findings"]}


async def copy_of(lower: Cluster) -> dict[str, Any]:
    """Return the lower copy of the test's ConfigMap."""
    return await get(lower, SPACE, "configmap", "settings")


async def test_a_healthy_system_exits_with_0(small: tuple[Sandbox, Process]):
    """There is no finding, even without a grace period, and the last line reports that."""
    sandbox, _ = small

    async def reported() -> tuple[int, str]:
        code, out = await inspect(sandbox, "--fail-on=warning", "--grace=0s")
        assert "\x1b" not in out
        return code, out.splitlines()[-1]

    # Without a grace period new objects are behind for a moment.
    await becomes(reported, (0, "2 clusters, 1 pod: no findings"))


async def least(cluster: Cluster, needed: Sequence[Right], name: str = "least") -> str:
    """Return the path of a kubeconfig of an account that has exactly these rights, with the token in a separate file."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rights.rules(needed),
    }
    await cluster.apply(role)
    await cluster.kubectl("-n", "default", "create", "serviceaccount", name)
    await cluster.kubectl(
        "create", "clusterrolebinding", name, f"--clusterrole={name}", f"--serviceaccount=default:{name}"
    )
    token = await cluster.kubectl("-n", "default", "create", "token", name, "--duration=1h")
    (cluster.directory / f"{name}.token").write_text(token.stdout.strip(), encoding="utf-8")
    whole = {
        "current-context": name,
        "contexts": [{"name": name, "context": {"cluster": "here", "user": name}}],
        "clusters": [
            {"name": "here", "cluster": {"server": cluster.server, "certificate-authority": str(cluster.ca)}}
        ],
        "users": [{"name": name, "user": {"tokenFile": f"{name}.token"}}],
    }
    path = cluster.directory / f"{name}.kubeconfig"
    path.write_text(json.dumps(whole), encoding="utf-8")
    return str(path)


async def test_the_rights_of_the_virtual_node_suffice(small: tuple[Sandbox, Process]):
    """Nothing stays unread, and a token of an hour in a file causes no warning about its expiry."""
    sandbox, _ = small
    whole = configuration(sandbox)
    whole["kubeconfig"] = await least(sandbox.upper, upper_rights(config_file.parse(json.dumps(whole))))
    whole["clusters"][0]["kubeconfig"] = await least(sandbox.lower[0], LOWER)
    file = sandbox.directory / "least.yaml"
    file.write_text(json.dumps(whole), encoding="utf-8")

    async def code() -> tuple[int, str]:
        code, out = await inspect(sandbox, f"--config={file}", "--fail-on=warning")
        return code, out if code else ""

    # An API server applies new rights a moment after they are written.
    await becomes(code, (0, ""))


async def test_scheduled_inspections_keep_a_history(small: tuple[Sandbox, Process]):
    """With the rights and the arguments of the chart's CronJob: a workload at risk is new, persists, and is fixed."""
    sandbox, _ = small
    upper = sandbox.upper
    needed = resolved(operator.INSPECTION, names={INSPECTION_HISTORY: ["runs"]}, own_namespace=SPACE)
    whole = configuration(sandbox) | {"kubeconfig": await least(upper, needed, "inspection")}
    file = sandbox.directory / "inspection.yaml"
    file.write_text(json.dumps(whole), encoding="utf-8")

    async def missing() -> set[tuple[str, str, str]]:
        _, found = await findings(sandbox, f"--config={file}")
        return {one for one in found if one[0] == "unread"}

    # An API server applies new rights a moment after they are written.
    await becomes(missing, set(), what="every kind is read")
    template = pod("single", "sleep 3600", node=NODE)
    await create(
        upper,
        SPACE,
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "runs"}, "data": {}},
        {
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "single"},
            "spec": {
                "selector": {"matchLabels": {"app": "single"}},
                "template": {
                    "metadata": {"labels": {"app": "single"}},
                    "spec": {**template["spec"], "terminationGracePeriodSeconds": 1},
                },
            },
        },
    )  # fmt: skip
    await upper.kubectl("-n", SPACE, "rollout", "status", "deployment/single", "--timeout=60s")
    arguments = (f"--config={file}", f"--history=configmap/{SPACE}/runs", "--fail-on=never")

    async def state() -> tuple[int, dict[str, str]]:
        code, _ = await inspect(sandbox, *arguments)
        stored = await get(upper, SPACE, "configmap", "runs")
        found = json.loads(stored["data"].get("history.json", '{"findings": []}'))["findings"]
        return code, {f"{one['check']} {one['object']}": one["state"] for one in found}

    at_risk = f"single-replica {SPACE}/single"
    assert await state() == (0, {at_risk: "new"})
    assert await state() == (0, {at_risk: "persisting"})
    await upper.kubectl("-n", SPACE, "delete", "deployment", "single", "--cascade=foreground", "--wait=true")
    assert await state() == (0, {at_risk: "fixed"})
    assert await state() == (0, {})


async def test_orphaned_lower_objects_are_found(small: tuple[Sandbox, Process]):
    """A lower pod and ConfigMap without upper objects: errors and warnings with their names."""
    sandbox, _ = small
    lower = sandbox.lower[0]
    ours = (await copy_of(lower))["metadata"]["labels"]["virtual-node.io/upper-cluster"]
    metadata = {
        "labels": {
            "virtual-node.io/upper-cluster": ours,
            "virtual-node.io/upper-uid": "00000000-dead-beef-0000-000000000000",
            "virtual-node.io/node": "vn-gone",
        }
    }
    leaked = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "forgotten", **metadata}}
    orphan = pod("orphan", "sleep 3600", metadata=metadata)
    orphan["spec"]["nodeSelector"] = {}
    others = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "theirs", "labels": {"virtual-node.io/upper-cluster": "somebody-else"}},
    }
    await create(lower, SPACE, leaked, orphan, others)
    code, found = await findings(sandbox)
    assert code == 0, "within the grace period nothing is a leak"
    assert ("leaked", "Pod", f"{SPACE}/orphan") not in found
    await asyncio.sleep(1)
    code, found = await findings(sandbox, "--grace=1s")
    assert code == 1
    assert found["leaked", "Pod", f"{SPACE}/orphan"]["severity"] == "error"
    assert "vn-gone" in found["leaked", "Pod", f"{SPACE}/orphan"]["message"]
    assert found["leaked", "ConfigMap", f"{SPACE}/forgotten"]["severity"] == "warning"
    assert "somebody-else" in found["others", "Cluster", "lower1"]["message"]
    assert not any(name.endswith("theirs") for _, _, name in found)
    code, out = await inspect(sandbox, "--grace=1s", "--fail-on=never")
    assert code == 0
    assert "1 error, 1 warning" in out.splitlines()[-1]
    await lower.kubectl(
        "-n", SPACE, "delete", "pod/orphan", "cm/forgotten", "cm/theirs", "--grace-period=0", "--force"
    )


async def test_a_drifted_copy_is_found_by_its_keys(small: tuple[Sandbox, Process]):
    """While the virtual node is stopped a lower ConfigMap is changed: the report has the key, but no value."""
    sandbox, process = small
    lower = sandbox.lower[0]
    assert process.identity is not None
    process.identity.signal(signal.SIGSTOP)
    try:
        patch = json.dumps({"data": {"colour": "scarlet"}})
        await lower.kubectl("-n", SPACE, "patch", "configmap", "settings", "-p", patch)
        code, found = await findings(sandbox)
    finally:
        process.identity.signal(signal.SIGCONT)
    assert code == 1
    drift = found["drift", "ConfigMap", f"{SPACE}/settings"]
    assert "data[colour]" in drift["message"]
    assert "scarlet" not in json.dumps(drift)

    async def mended() -> bool:
        return bool((await copy_of(lower))["data"] == {"colour": "blue"})

    await eventually(mended, what="the virtual node puts the copy right")


async def test_a_cordoned_lower_node_is_found(small: tuple[Sandbox, Process]):
    """It is a warning, with the command that uncordons it."""
    sandbox, _ = small
    lower = sandbox.lower[0]
    await lower.kubectl("cordon", "lower1-node-1")
    try:
        code, found = await findings(sandbox, "--fail-on=warning")
    finally:
        await lower.kubectl("uncordon", "lower1-node-1")
    assert code == 1
    cordoned = found["capacity", "Node", "lower1-node-1"]
    assert (cordoned["severity"], cordoned["message"]) == ("warning", "is cordoned")
    assert "50% not usable" in found["capacity", "Node", NODE]["message"]


async def test_an_unreachable_cluster_is_exit_code_3(small: tuple[Sandbox, Process]):
    """The other clusters are still reported; an unreadable configuration is exit code 2."""
    sandbox, _ = small
    good = configuration(sandbox)
    silent = sandbox.directory / "silent.kubeconfig"
    silent.write_text(
        sandbox.lower[0].kubeconfig.read_text(encoding="utf-8").replace(
            sandbox.lower[0].server, "https://127.0.0.1:1"
        ),
        encoding="utf-8",
    )  # fmt: skip
    good["clusters"].append({"name": "silent", "kubeconfig": str(silent), "nodeName": "vn-silent"})
    file = sandbox.directory / "with-silent.yaml"
    file.write_text(json.dumps(good), encoding="utf-8")
    code, found = await findings(sandbox, f"--config={file}", "--fail-on=never")
    assert code == 3
    assert ("unread", "Cluster", "silent") in found
    assert ("capacity", "Node", NODE) in found
    code, out = await inspect(sandbox, f"--config={sandbox.directory / 'nowhere.yaml'}")
    assert (code, out.count("\n")) == (2, 1)


async def test_every_tool_reports_a_pod_that_no_lower_node_fits(small: tuple[Sandbox, Process]):
    """The page, status, doctor (exit code 1) and inspect agree before, during and after."""
    sandbox, _ = small
    upper = sandbox.upper
    await becomes(lambda: verdicts(sandbox), HEALTHY, what="every tool reports health")
    selector = json.dumps({"nodeSelector": {"disktype": "none-has-it"}})
    picky = pod("picky", "sleep 3600", node=NODE, metadata={"annotations": {"clusterSelector": selector}})
    await create(upper, SPACE, picky)
    found = {"PodUnschedulable"}
    await becomes(
        lambda: verdicts(sandbox),
        {
            "page": ("faulty", found),
            "status": ("faulty", found),
            "doctor": (1, "lowerVerdict"),
            "inspect": {"pods"},
        },
        what="every tool reports the pod",
    )
    _, why = await command(sandbox, "diagnose", f"pod/{SPACE}/picky")
    assert why["findings"][0]["title"] == "The lower scheduler finds no node for the pod."
    assert "get nodes --show-labels" in why["findings"][0]["nextSteps"][0]
    await upper.kubectl("-n", SPACE, "delete", "pod", "picky", "--wait=true")
    await becomes(lambda: verdicts(sandbox), HEALTHY, what="every tool reports health again")


async def test_every_tool_reports_a_degraded_swarm(small: tuple[Sandbox, Process]):
    """With the message of its condition; the page shows it in a table."""
    sandbox, _ = small
    upper = sandbox.upper
    await becomes(lambda: verdicts(sandbox), HEALTHY, what="every tool reports health")
    degraded = {
        "apiVersion": SWARMS.api_version, "kind": SWARMS.kind, "metadata": {"name": "streams"},
        "spec": {"workers": {"deployment": "none"}, "jobs": [{"name": "a"}]},
    }  # fmt: skip
    await create(upper, SPACE, degraded)
    failing = {
        "type": "Degraded",
        "status": "True",
        "reason": "WorkersMissing",
        "message": "no Deployment none",
    }
    patch = json.dumps({"status": {"jobCount": 1, "conditions": [failing]}})
    await upper.kubectl(
        "-n", SPACE, "patch", "swarm", "streams", "--subresource=status", "--type=merge", "-p", patch
    )
    found = {"SwarmDegraded"}
    await becomes(
        lambda: verdicts(sandbox),
        {
            "page": ("faulty", found),
            "status": ("faulty", found),
            "doctor": (1, "swarms"),
            "inspect": {"swarm"},
        },
        what="every tool reports the Swarm",
    )
    _, listed = await findings(sandbox)
    assert listed["swarm", "Swarm", f"{SPACE}/streams"]["message"] == "no Deployment none"
    row = {"name": f"{SPACE}/streams", "workers": 0, "jobs": 1, "running": 0, "state": "degraded"}
    assert (await page("swarms"))["rows"] == [row]
    await upper.kubectl("-n", SPACE, "delete", "swarm", "streams")
    await becomes(lambda: verdicts(sandbox), HEALTHY, what="every tool reports health again")


async def test_every_tool_reports_a_lost_cluster(small: tuple[Sandbox, Process]):
    """Also for pods that wait for it: the fault is the lost cluster, not a missing label."""
    sandbox, _ = small
    upper, lower = sandbox.upper, sandbox.lower[0]
    await lower.apiserver.kill()
    try:

        async def lost() -> bool:
            reported = await verdicts(sandbox)
            kinds = [reported["page"][1], reported["status"][1]]
            return (
                all("ClusterLost" in one for one in kinds)
                and reported["doctor"] == (1, "nodeReady")
                and "cluster" in reported["inspect"]
            )

        await eventually(lost, what="every tool reports the lost cluster")
        _, shown = await inspect(sandbox)
        assert "ssl:default" not in shown
        assert "no findings" not in shown
        labelled = pod("later", "sleep 3600", node=NODE, metadata={"labels": {"virtual-pod": "true"}})
        await create(upper, SPACE, labelled)

        async def reported() -> tuple[int, str]:
            code, why = await command(sandbox, "diagnose", f"pod/{SPACE}/later")
            assert "label" not in json.dumps([one["nextSteps"] for one in why["findings"]])
            return code, why["findings"][0]["title"]

        # Until the taint not-ready is there, the scheduler may still bind the pod.
        lost_titles = {
            (1, "The virtual node that the pod may run on is lost or not Ready."),
            (1, "Lower cluster lower1 is lost: its API server does not answer."),
        }

        async def is_lost() -> bool:
            return await reported() in lost_titles

        await eventually(is_lost, what="the lost cluster in diagnose")
        code, why = await command(sandbox, "diagnose", f"pod/{SPACE}/web")
        assert (code, why["findings"][0]["title"]) == (
            1,
            "Lower cluster lower1 is lost: its API server does not answer.",
        )
    finally:
        await lower.restore()
    await ready(upper, SPACE, "later")
    await becomes(lambda: verdicts(sandbox), HEALTHY, what="every tool reports health again")

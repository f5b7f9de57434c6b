"""The chart with the project's image on a real node: install, upgrade under load, uninstall without remains.

The tests of this file form one sequence, in order over one sandbox, because an installation is expensive.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import ssl
import sys
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.builds.programs import HELM_MAJOR, KUBERNETES_VERSION
from hack.sandbox.command import command
from hack.sandbox.commands import helm as charts
from hack.sandbox.commands.helm import NAMESPACE, RELEASE, helm
from tests.clusters.chart.hand_over import owners, pods_each_second, replicas
from tests.clusters.chart.installation import data, labelled, left_above, names, read
from tests.clusters.pods.test_volumes import STATIC
from tests.clusters.services.client_loop import count, run_on, start_client, web
from tests.clusters.virtual_nodes import pod
from tests.waiting import PATIENCE, becomes, create, eventually, get, node_ready, ready

pytestmark = [pytest.mark.e2e, pytest.mark.real_node]

REAL = "lower1"
DEPLOYMENT = f"deployment/{RELEASE}-virtual-node"
_AS_HELM_3 = ["--server-side=false"] if HELM_MAJOR == "4" else []
_AS_HELM_4 = ["--server-side=true"] if HELM_MAJOR == "4" else []
"""Helm 4 keeps the apply method of a release's last revision by default."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def installed(tmp_path_factory: pytest.TempPathFactory, image: Path) -> AsyncIterator[Sandbox]:
    """An upper cluster with a real node and the chart in it, over a real and a simulated lower cluster."""
    if os.geteuid() != 0:
        pytest.skip("containers on a real node need root")
    directory = tmp_path_factory.mktemp("helm") / "sandbox"
    async with Sandbox(
        lower=2,
        real_node=True,
        upper_real_node=True,
        kwok_nodes=2,
        directory=directory,
        # Logs and exec work only with serving certificates that the cluster itself has signed.
        upper_apiserver_args=[f"--kubelet-certificate-authority={directory / 'upper' / 'pki' / 'ca.crt'}"],
    ) as sandbox:
        await charts.load_images(sandbox, image)
        upper = sandbox.upper
        await upper.kubectl("create", "namespace", NAMESPACE)
        # Pods that violate the restricted standard would not be admitted.
        await upper.kubectl("label", "namespace", NAMESPACE, "pod-security.kubernetes.io/enforce=restricted")
        await _helm(sandbox, "install", *_AS_HELM_3)
        yield sandbox


def _values(sandbox: Sandbox) -> dict[str, Any]:
    found = charts.values(sandbox)
    found["virtualNode"]["mode"] = "Sharded"
    for cluster in found["virtualNode"]["clusters"]:
        cluster["config"] = {"volumes": {"published": [STATIC]}}
    found["virtualNode"]["kubelet"] = {"servingCertificate": "CSR", "approveServingCertificate": True}
    found["annotator"] = {"enabled": True}
    found["inspection"] = {"enabled": True}
    found["uninstall"] = {"timeout": 40}
    return found


async def _helm(sandbox: Sandbox, verb: str, *more: str, values: dict[str, Any] | None = None) -> None:
    try:
        await helm(
            sandbox, verb, RELEASE, str(charts.CHART), f"--namespace={NAMESPACE}", "--wait", "--timeout=270s", *more,
            values=values,
        )  # fmt: skip
    except Exception:
        pods = await sandbox.upper.kubectl("-n", NAMESPACE, "describe", "pods")
        logs = await sandbox.upper.kubectl(
            "-n",
            NAMESPACE,
            "logs",
            "-l",
            "app.kubernetes.io/part-of=virtual-node",
            "--prefix",
            "--tail=20",
            check=False,
        )
        sys.stdout.write(f"{pods.stdout[-6000:]}\n{logs.stdout[-6000:]}\n")
        raise


async def test_clusters_are_added_by_an_upgrade(installed: Sandbox):
    """The chart starts without values; registered clusters join with the next upgrade, which also changes the mode.

    Each of two replicas runs one cluster. Helm 4 takes over what Helm 3 has installed, and uses server-side apply from then on.
    """
    assert (await read(installed.upper, "nodes", "-l", "type=virtual-kubelet"))["items"] == []
    for cluster in installed.lower:
        await charts.register(installed, cluster)
    await _helm(installed, "upgrade", *_AS_HELM_4, values=_values(installed))
    for cluster in installed.lower:
        await node_ready(installed.upper, cluster.name)
    await owners(installed.upper, not_in=set())
    made = await read(installed.upper, "-n", NAMESPACE, DEPLOYMENT, "--show-managed-fields")
    managers = {(one["manager"], one["operation"]) for one in made["metadata"]["managedFields"]}
    assert {how for who, how in managers if who == "helm"} == {"Apply" if HELM_MAJOR == "4" else "Update"}


async def test_a_labelled_pod_runs_in_a_lower_cluster_with_logs_and_exec(installed: Sandbox):
    upper = installed.upper
    await upper.kubectl("create", "namespace", "shop")
    await create(upper, "shop", labelled("web", "echo open; exec sleep 3600"))
    await ready(upper, "shop", "web")
    found = await read(upper, "-n", "shop", "pod", "web")
    assert found["spec"]["nodeName"] == REAL
    assert found["spec"]["schedulerName"] == "virtual-node-scheduler", "the webhook chose ours"
    lower_pod = await read(installed.lower[0], "-n", "shop", "pod", "web")
    assert lower_pod["metadata"]["labels"]["virtual-node.io/upper-uid"] == found["metadata"]["uid"]

    async def open_() -> bool:
        return "open" in (await upper.kubectl("-n", "shop", "logs", "web")).stdout

    await eventually(open_, what="the log's first line")
    assert (await upper.kubectl("-n", "shop", "exec", "web", "--", "echo", "hello")).stdout == "hello\n"


async def test_the_extender_accepts_calls_of_the_scheduler_only(installed: Sandbox):
    """The scheduler's certificate, from a Secret that only its pod mounts, is required; health and metrics are open."""
    upper = installed.upper
    secret = await read(upper, "-n", NAMESPACE, "secret", f"{RELEASE}-virtual-node-scheduler-tls")
    assert set(secret["data"]) == {"ca.crt", "tls.crt", "tls.key"}, "not the CA's key"
    files = {name: installed.directory / f"scheduler-{name}" for name in secret["data"]}
    for name, file in files.items():
        file.touch(mode=0o600)
        file.write_bytes(base64.b64decode(secret["data"][name]))
    stranger = ssl.create_default_context(cafile=str(files["ca.crt"]))
    stranger.check_hostname = False  # the certificate does not have the name of the forwarded port
    known = ssl.create_default_context(cafile=str(files["ca.crt"]))
    known.check_hostname = False
    known.load_cert_chain(files["tls.crt"], keyfile=files["tls.key"])
    call = {"Pod": {"metadata": {"uid": "stranger"}, "spec": {"containers": []}}, "NodeNames": [REAL]}
    async with _forwarded(installed, "8888") as port, aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{port}/filter"
        async with session.post(url, json=call, ssl=stranger) as answer:
            assert answer.status == 401
        async with session.post(url, json=call, ssl=known) as answer:
            assert answer.status == 200
        body = BytesIO(json.dumps(call).encode() + b" " * 4 * 1024**2)
        async with session.post(url, data=body, ssl=known) as answer:
            assert answer.status == 413
    async with (
        _forwarded(installed, "9090") as port,
        aiohttp.ClientSession() as session,
        session.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        assert "virtual_node_extender_calls_total" in await answer.text()


@contextlib.asynccontextmanager
async def _forwarded(installed: Sandbox, port: str) -> AsyncIterator[int]:
    """Yield a local port that is forwarded to one of the extender."""
    kubectl = [str(installed.binaries["kubectl"]), "--kubeconfig", str(installed.upper.kubeconfig)]
    process = await asyncio.create_subprocess_exec(
        *kubectl, "-n", NAMESPACE, "port-forward", f"{DEPLOYMENT}-multi-scheduler", f":{port}",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        # Forwarding from 127.0.0.1:41234 -> 8888
        yield int((await _line(process.stdout)).split()[2].rpartition(":")[2])
    finally:
        process.terminate()
        await process.wait()


async def test_status_shows_the_lag_of_each_node(installed: Sandbox):
    """Through the API server the command reads the daemon's own measurement, on verified certificates."""
    upper = f"--kubeconfig={installed.upper.kubeconfig}"
    done = await command([*(sys.executable, "-m", "virtual_node", "status", upper), "-o", "json"])
    (real,) = [node for node in json.loads(done.stdout)["nodes"] if node["name"] == REAL]
    assert 0 < real["lag"]["down"]["p50"] <= real["lag"]["down"]["p99"] < 30
    assert 0 < real["lag"]["up"]["p99"] < 30


async def test_helm_test_finds_no_broken_link(installed: Sandbox):
    """`helm test` runs the doctor inside the cluster, with its own rights."""
    done = await helm(installed, "test", RELEASE, f"--namespace={NAMESPACE}", "--timeout=270s")
    output = done.stdout + done.stderr
    assert ("Every link holds." in output, "upper API server" in output) == (True, False)


async def test_a_scheduled_inspection_writes_its_history(installed: Sandbox):
    """The CronJob's Job reads all clusters with its own rights, and stores what it has found."""
    upper, name = installed.upper, f"{RELEASE}-virtual-node-inspection"
    await upper.kubectl("-n", NAMESPACE, "create", "job", "inspect", f"--from=cronjob/{name}")
    await upper.kubectl("-n", NAMESPACE, "wait", "--for=condition=Complete", "job/inspect", "--timeout=170s")
    stored = await read(upper, "-n", NAMESPACE, "configmap", name)
    history = json.loads(stored["data"]["history.json"])
    assert history["runs"]


async def test_an_upgrade_drops_no_stream_and_loses_no_pod(installed: Sandbox):
    """While all programs are replaced a log continues, no request fails, the node stays Ready, and new pods run elsewhere."""
    upper = installed.upper
    await upper.kubectl("create", "namespace", "traffic")
    await create(upper, "traffic", *web(**_labelled("web")))
    await run_on(upper, "traffic", REAL)
    await start_client(upper, "traffic", **_labelled("client"))
    good, _ = await count(upper, "traffic", above=10)
    script = "i=0; while true; do echo line $i; i=$((i+1)); sleep 0.2; done"
    await create(upper, "shop", labelled("ticker", script))
    await ready(upper, "shop", "ticker")
    before = await read(installed.lower[0], "-n", "shop", "pod", "ticker")
    kubectl = [str(installed.binaries["kubectl"]), "--kubeconfig", str(upper.kubeconfig), "-n", "shop"]
    follower = await asyncio.create_subprocess_exec(
        *kubectl, "logs", "-f", "ticker", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert follower.stdout is not None
    states: list[str] = []

    async def watch_node() -> None:
        while True:
            node = await get(upper, "", "node", REAL)
            states.append(next(c["status"] for c in node["status"]["conditions"] if c["type"] == "Ready"))
            await asyncio.sleep(0.5)

    watcher = asyncio.create_task(watch_node())
    old = {one["metadata"]["name"] for one in await replicas(upper)}
    try:
        lines = [await _line(follower.stdout)]
        rolled = _values(installed)
        for program in ("virtualNode", "webhook", "descheduler", "multiScheduler", "annotator"):
            rolled.setdefault(program, {})["podAnnotations"] = {"example.com/rolled": "yes"}
        async with pods_each_second(installed):
            await _helm(installed, "upgrade", values=rolled)
            await owners(upper, not_in=old)
        # The log that was opened through the predecessor is still being written, without a gap.
        number = int(lines[0].split()[1])
        lines += [await _line(follower.stdout) for _ in range(10)]
        assert follower.returncode is None
        while int(lines[-1].split()[1]) < number + 60:
            lines.append(await _line(follower.stdout))
        assert [int(line.split()[1]) for line in lines] == list(range(number, number + len(lines)))
        # New requests are served by the successor.
        assert (await upper.kubectl("-n", "shop", "exec", "ticker", "--", "echo", "here")).stdout == "here\n"
    finally:
        watcher.cancel()
        with contextlib.suppress(ProcessLookupError):
            follower.kill()
        await follower.wait()
    assert set(states) == {"True"}, states
    _, failed = await count(upper, "traffic", above=good + 20)
    assert failed == 0
    after = await read(installed.lower[0], "-n", "shop", "pod", "ticker")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [one["restartCount"] for one in after["status"]["containerStatuses"]] == [0]


async def test_a_rollback_hands_over_like_an_upgrade(installed: Sandbox):
    """The pods have the previous template, lower pods keep running, and no request fails."""
    upper = installed.upper
    good, _ = await count(upper, "traffic", above=0)
    before = await read(installed.lower[0], "-n", "shop", "pod", "ticker")
    old = {one["metadata"]["name"] for one in await replicas(upper)}
    await helm(installed, "rollback", RELEASE, f"--namespace={NAMESPACE}", "--wait", "--timeout=270s")
    for owner in await owners(upper, not_in=old):
        annotations = (await read(upper, "-n", NAMESPACE, "pod", owner))["metadata"]["annotations"]
        assert "example.com/rolled" not in annotations
    after = await read(installed.lower[0], "-n", "shop", "pod", "ticker")
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert [one["restartCount"] for one in after["status"]["containerStatuses"]] == [0]
    assert (await upper.kubectl("-n", "shop", "exec", "ticker", "--", "echo", "here")).stdout == "here\n"
    _, failed = await count(upper, "traffic", above=good + 20)
    assert failed == 0
    await upper.kubectl("delete", "namespace", "traffic", "--timeout=150s")


async def test_the_uninstall_job_does_nothing_when_kubectl_applies_it(installed: Sandbox):
    """`helm template | kubectl apply --server-side` beside the release: the Job logs why, and nothing is removed."""
    upper = installed.upper
    made = await helm(
        installed, "template", RELEASE, str(charts.CHART), f"--namespace={NAMESPACE}",
        "--show-only=templates/uninstall/cleanup.yaml", f"--kube-version={KUBERNETES_VERSION}", values=_values(installed),
    )  # fmt: skip
    await upper.kubectl("apply", "--server-side", "-f", "-", input=made.stdout)

    async def refused() -> bool:
        log = await upper.kubectl(
            "-n", NAMESPACE, "logs", "-l", "app.kubernetes.io/component=uninstall", check=False
        )
        return "was made by kubectl; nothing was done" in log.stdout

    await eventually(refused, what="the Job's word that it does nothing")
    # The objects that the Job would have deleted first, and last.
    await read(upper, "mutatingwebhookconfiguration", f"{NAMESPACE}.{RELEASE}-virtual-node-webhook")
    await node_ready(upper, REAL)
    assert (await upper.kubectl("-n", "shop", "exec", "ticker", "--", "echo", "here")).stdout == "here\n"


async def test_uninstall_completes_and_leaves_nothing(installed: Sandbox):
    """`helm uninstall` deletes everything, though a lower cluster is unreachable and keeps its objects.

    Data is kept, and helm prints so.
    """
    upper, away = installed.upper, installed.lower[1]
    file = await data(installed)
    cluster_id = (await read(upper, "namespace", "kube-system"))["metadata"]["uid"]
    lost = pod("lost", "sleep 3600", node=away.name)
    await create(upper, "shop", lost)
    await ready(upper, "shop", "lost")
    await away.apiserver.kill()
    done = await helm(installed, "uninstall", RELEASE, f"--namespace={NAMESPACE}", "--wait", "--timeout=270s")
    left = json.loads((await helm(installed, "list", "--all-namespaces", "-o", "json")).stdout)
    assert left == []
    volume_above = ["CSIDriver/lower-cluster.virtual-node.io", "PersistentVolume/lower1-vault"]
    await becomes(lambda: left_above(upper), volume_above, what="a claim's volume alone is left above")
    assert "lower1: claim vault/data is kept" in done.stdout + done.stderr
    assert "lower2: not cleaned" in done.stdout + done.stderr
    assert "delete secret virtual-node-lower1 virtual-node-lower1-viewer" in done.stdout + done.stderr
    claim_above = await read(upper, "-n", "vault", "pvc", "data")
    assert claim_above["status"]["phase"] == "Bound"
    assert claim_above["metadata"]["finalizers"] == ["kubernetes.io/pvc-protection"]
    assert file.read_text() == "kept\n"
    await away.restore()
    kept = await read(away, "-n", "shop", "pods")
    assert [one["metadata"]["name"] for one in kept["items"]] == ["lost"], (
        "what could not be reached was left alone"
    )
    # Once it is back, the same command by hand deletes the rest.
    await command(
        [
            *(sys.executable, "-m", "virtual_node", "cleanup", f"--kubeconfig={upper.kubeconfig}"),
            *(f"--client-kubeconfig={away.kubeconfig}", f"--nodename={away.name}"),
        ]
    )
    for lower in installed.lower:

        async def ours(lower: Cluster = lower) -> list[str]:
            kinds = "pods,services,endpointslices,configmaps,secrets,pvc"
            found = await read(lower, "-A", kinds, "-l", f"virtual-node.io/upper-cluster={cluster_id}")
            return names(found)

        stays = [] if lower is away else ["PersistentVolumeClaim/data"]
        await becomes(ours, stays, what=f"nothing but data is left in {lower.name}")
        await lower.kubectl("wait", "--for=delete", "namespace/shop", "--timeout=150s")


def _labelled(name: str) -> dict[str, Any]:
    """Return options of ``pod`` for a pod that only the release's webhook and scheduler bring to the real lower node."""
    labels = {"app": name, "virtual-pod": "true"}
    return {"metadata": {"labels": labels}, "nodeSelector": {"pool": "real"}, "tolerations": []}


async def _line(stream: asyncio.StreamReader) -> str:
    async with asyncio.timeout(PATIENCE):
        return (await stream.readline()).decode()

"""NetworkPolicies, budgets and Ingresses follow pods into a real lower cluster, with the documented rights only."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from controller_runtime import resources
from hack.sandbox import Cluster, Sandbox, SandboxError
from hack.sandbox.commands.demo import configuration
from tests.clusters.pool import Lend
from tests.gateways import custom_resource
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready
from virtual_node.config.file import parse
from virtual_node.rights import daemon, manifests

pytestmark = pytest.mark.e2e
FOLLOW = ["networkPolicies", "podDisruptionBudgets", "ingresses", "gateways", "serviceExports"]
SHOP = "shop"
NODE = "vn-lower1"
USER = "virtual-node-follow"
RBAC = "rbac.authorization.k8s.io"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sandbox(simulated: Lend) -> AsyncIterator[Sandbox]:
    """An upper and a lower cluster, and a virtual node that has only the rights of the tables."""
    async with simulated(lower=1) as running:
        (lower,) = running.lower
        config = configuration(running)
        config["clusters"][0] |= {
            "follow": FOLLOW,
            "ingressClasses": {"web": "edge"},
            "kubeconfig": str(_limited(lower)),
        }
        config["kubeconfig"] = str(_limited(running.upper))
        parsed = parse(json.dumps(config))
        await running.upper.apply(*_role([*daemon.upper(parsed), *daemon.UPPER_ELECTION]))
        await lower.apply(*_role(daemon.lower(FOLLOW)))
        for cluster in (running.upper, lower):
            await cluster.apply(
                *map(custom_resource, (resources.GATEWAYS, resources.HTTP_ROUTES, resources.SERVICE_EXPORTS))
            )
            await cluster.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        file = running.directory / "virtual-node.yaml"
        file.write_text(json.dumps(config), encoding="utf-8")
        await running.start_process(
            "virtual-node",
            [sys.executable, "-m", "virtual_node", "--config", file],
            env={"VKUBELET_POD_IP": "127.0.0.1"},
        )
        await node_ready(running.upper, NODE)
        await make_namespace(running.upper, SHOP)
        yield running


def _limited(cluster: Cluster) -> Path:
    """Return a kubeconfig of an account without rights of its own."""
    config = json.loads(cluster.kubeconfig.read_text(encoding="utf-8"))
    config["users"][0]["user"] |= {"as": USER}
    file = cluster.directory / "limited.kubeconfig"
    file.write_text(json.dumps(config), encoding="utf-8")
    return file


def _role(rights: Any) -> list[dict[str, Any]]:
    subject = {"apiGroup": RBAC, "kind": "User", "name": USER}
    return [
        manifests.cluster_role(rights, name=USER),
        {
            "apiVersion": f"{RBAC}/v1", "kind": "ClusterRoleBinding", "metadata": {"name": USER},
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": USER}, "subjects": [subject],
        },
    ]  # fmt: skip


def _deployment(replicas: int) -> dict[str, Any]:
    labels = {"app": "web"}
    return {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": SHOP},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 1,
                    "nodeSelector": {"type": "virtual-kubelet"},
                    "tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}],
                    "containers": [{"name": "web", "image": "busybox"}],
                },
            },
        },
    }  # fmt: skip


def _policy(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": name, "namespace": SHOP},
        "spec": {"podSelector": {"matchLabels": {"app": "web"}}, **spec},
    }  # fmt: skip


async def _running(lower: Cluster) -> list[str]:
    found = (await get(lower, SHOP, "pods", labels="app=web"))["items"]
    return sorted(
        one["metadata"]["name"]
        for one in found
        if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
    )


async def _count_running(lower: Cluster) -> int:
    return len(await _running(lower))


async def _names(cluster: Cluster, kind: str) -> list[str]:
    return sorted(one["metadata"]["name"] for one in (await get(cluster, SHOP, kind))["items"])


async def _evict(cluster: Cluster, pod: str) -> str:
    """Return the status of the eviction: 201, or that of the refusal."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": SHOP}}
    try:
        await cluster.api.create(resources.PODS.path(namespace=SHOP, name=pod, subresource="eviction"), body)
    except SandboxError as error:
        return str(error).partition(": ")[2][:3]
    return "201"


async def _reasons(upper: Cluster, kind: str) -> set[str]:
    found = (await get(upper, SHOP, "events"))["items"]
    return {one["reason"] for one in found if one["involvedObject"]["kind"] == kind}


async def test_policies_and_budgets_follow_pods(sandbox: Sandbox) -> None:
    """Copies exist before pods start, evictions respect the upper budget, and nothing is left at the end."""
    upper, (lower,) = sandbox.upper, sandbox.lower
    await create(
        upper,
        SHOP,
        _policy(
            "own",
            policyTypes=["Ingress", "Egress"],
            ingress=[{"from": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": SHOP}}}]}],
            egress=[{"to": [{"podSelector": {"matchLabels": {"group.batch.scheduler.tencent.com": "x"}}}]}],
        ),
        {
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "web", "namespace": SHOP},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": "100%"},
        },
    )  # fmt: skip
    await upper.apply(_deployment(2))

    async def running() -> int:
        return await _count_running(lower)

    await becomes(running, 2, what="both pods run in the lower cluster")
    copy = await get(lower, SHOP, "networkpolicy", "own")
    pods = (await get(lower, SHOP, "pods", labels="app=web"))["items"]
    first = min(one["metadata"]["creationTimestamp"] for one in pods)
    assert copy["metadata"]["creationTimestamp"] <= first
    ours = copy["metadata"]["labels"]["virtual-node.io/upper-cluster"]
    only_ours = {"virtual-node.io/upper-cluster": ours}
    assert copy["spec"]["podSelector"] == {"matchLabels": {"app": "web", **only_ours}}
    in_shop = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [SHOP]}
    assert copy["spec"]["ingress"] == [
        {
            "from": [
                {
                    "namespaceSelector": {"matchLabels": only_ours, "matchExpressions": [in_shop]},
                    "podSelector": {"matchLabels": only_ours},
                }
            ]
        }
    ]
    assert "egress" not in copy["spec"]
    assert copy["spec"]["policyTypes"] == ["Ingress", "Egress"]

    async def is_explained() -> bool:
        return "PartlyMirrored" in await _reasons(upper, "NetworkPolicy")

    await eventually(is_explained, what="an event says what the copy leaves out")

    async def budget() -> list[tuple[int, int]]:
        found = (await get(lower, SHOP, "poddisruptionbudgets"))["items"]
        return [(one["spec"]["minAvailable"], one["status"]["disruptionsAllowed"]) for one in found]

    await becomes(budget, [(2, 0)], what="the copy of the budget needs both pods")
    names = await _running(lower)
    assert [await _evict(lower, name) for name in names] == ["429", "429"]
    change = {"spec": {"minAvailable": None, "maxUnavailable": 1}}
    await upper.kubectl(
        "-n", SHOP, "patch", "poddisruptionbudget", "web", "--type=merge", "-p", json.dumps(change)
    )
    await becomes(budget, [(1, 1)], what="the copy of the budget allows one eviction")
    # Without a cordon the replacement may be ready before the second eviction, which is then rightly allowed.
    await upper.kubectl("cordon", NODE)
    assert [await _evict(lower, name) for name in names] == ["201", "429"]
    await upper.kubectl("uncordon", NODE)
    await becomes(running, 2, what="the upper controller has replaced the pod")

    await _check_ingress(upper, lower)
    await _check_conflict(upper, lower)
    await upper.kubectl("-n", SHOP, "delete", "deployment", "web", "--wait=true")

    async def left() -> list[list[str]]:
        kinds = (
            "networkpolicies",
            "poddisruptionbudgets",
            "ingresses",
            "gateways",
            "secrets",
            "serviceexports",
        )
        return [await _names(lower, kind) for kind in kinds]

    await becomes(left, [["taken"], [], [], [], [], []], what="only the object that is not ours is left")


async def _check_conflict(upper: Cluster, lower: Cluster) -> None:
    """A policy whose lower name is taken is reported, and new pods wait, because nothing would isolate them."""
    theirs = _policy("taken", policyTypes=["Egress"], egress=[{}])
    await create(lower, SHOP, theirs)
    before = await get(lower, SHOP, "networkpolicy", "taken")
    await create(upper, SHOP, _policy("taken", policyTypes=["Ingress"]))

    async def is_reported() -> bool:
        return "NetworkPolicyConflict" in await _reasons(upper, "NetworkPolicy")

    await eventually(is_reported, what="an event reports the conflict")
    await upper.apply(_deployment(3))

    async def waits() -> bool:
        return "NetworkPolicyNotMirrored" in await _reasons(upper, "Pod")

    await eventually(waits, what="the third pod waits")
    assert await _count_running(lower) == 2
    await upper.kubectl("-n", SHOP, "delete", "networkpolicy", "taken")

    async def running() -> int:
        return await _count_running(lower)

    await becomes(running, 3, what="the third pod starts")
    assert await get(lower, SHOP, "networkpolicy", "taken") == before


async def _check_ingress(upper: Cluster, lower: Cluster) -> None:
    """The copy has its Secret and class; the upper Ingress gets the address, and loses it with its Service."""
    await upper.kubectl("-n", SHOP, "create", "secret", "generic", "cert", "--from-literal=tls.crt=x")
    service = {"metadata": {"name": "web"}, "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}}
    await create(
        upper,
        SHOP,
        {"apiVersion": "v1", "kind": "Service", **service},
        {
            "apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "web"},
            "spec": {
                "ingressClassName": "web",
                "defaultBackend": {"service": {"name": "web", "port": {"number": 80}}},
                "tls": [{"hosts": ["web.example.com"], "secretName": "cert"}],
            },
        },
    )  # fmt: skip

    async def copied() -> list[str]:
        copy = (await get(lower, SHOP, "ingress", "web"))["spec"]
        secret = await get(lower, SHOP, "secret", copy["tls"][0]["secretName"])
        return [copy["ingressClassName"], *secret["data"]]

    await becomes(copied, ["edge", "tls.crt"], what="the Ingress and its Secret are copied")
    await _check_gateway(upper, lower)
    await _set_status(lower, "ingress", "web", loadBalancer={"ingress": [{"ip": "192.0.2.7"}]})

    async def addresses() -> list[str]:
        found = (await get(upper, SHOP, "ingress", "web"))["status"]["loadBalancer"]
        return [one["ip"] for one in found.get("ingress") or ()]

    await becomes(addresses, ["192.0.2.7"], what="the upper Ingress has the address of its copy")
    await upper.kubectl("-n", SHOP, "delete", "service", "web")
    await becomes(addresses, [], what="the upper Ingress has lost the address")

    async def routes() -> list[str]:
        return await _names(lower, "httproutes")

    await becomes(routes, [], what="the route is gone with its Service")
    assert await _names(lower, "ingresses") == []


async def _check_gateway(upper: Cluster, lower: Cluster) -> None:
    """A Gateway and a route are copied; routes of lower users are not accepted."""
    version = resources.GATEWAYS.api_version
    accepted = {"namespaces": {"from": "All"}}
    listener = {"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": accepted}
    await create(
        upper,
        SHOP,
        {
            "apiVersion": version, "kind": "Gateway", "metadata": {"name": "edge"},
            "spec": {"gatewayClassName": "web", "listeners": [listener]},
        },
        {
            "apiVersion": version, "kind": "HTTPRoute", "metadata": {"name": "web"},
            "spec": {"parentRefs": [{"name": "edge"}], "rules": [{"backendRefs": [{"name": "web", "port": 80}]}]},
        },
    )  # fmt: skip

    async def copied() -> list[Any]:
        gateway = (await get(lower, SHOP, "gateway", "edge"))["spec"]
        route = (await get(lower, SHOP, "httproute", "web"))["spec"]
        accepts = gateway["listeners"][0]["allowedRoutes"]["namespaces"]["from"]
        return [accepts, route["parentRefs"], route["rules"]]

    wanted = [
        "Selector",
        [{"name": "edge", "namespace": SHOP}],
        [{"backendRefs": [{"name": "web", "port": 80}]}],
    ]
    await becomes(copied, wanted, what="the Gateway and its route are copied")
    address = {"type": "Hostname", "value": "edge.example.com"}
    await _set_status(lower, "gateway", "edge", addresses=[address])

    async def addresses() -> Any:
        return (await get(upper, SHOP, "gateway", "edge")).get("status", {}).get("addresses")

    await becomes(addresses, [address], what="the upper Gateway has the address of its copy")
    await _check_export(upper, lower)


async def _check_export(upper: Cluster, lower: Cluster) -> None:
    """The export of a copied Service is copied, and that of a Service without a copy is not."""
    version = resources.SERVICE_EXPORTS.api_version
    await create(
        upper,
        SHOP,
        *(
            {"apiVersion": version, "kind": "ServiceExport", "metadata": {"name": name}}
            for name in ("absent", "web")
        ),
    )

    async def copied() -> list[str]:
        return await _names(lower, "serviceexports")

    await becomes(copied, ["web"], what="only the export of the copied Service is in the lower cluster")


async def _set_status(cluster: Cluster, kind: str, name: str, **status: Any) -> None:
    patch = json.dumps({"status": status})
    await cluster.kubectl(
        "-n", SHOP, "patch", kind, name, "--subresource=status", "--type=merge", "-p", patch
    )

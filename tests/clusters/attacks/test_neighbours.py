"""Attacks on real API servers and a real scheduler: an upper tenant against pods and Services of others."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from hack.sandbox import Cluster, Sandbox
from hack.sandbox.cluster import LOOPBACK
from tests.clusters.attacks.test_ownership import apply, events, tenant
from tests.clusters.pool import Lend
from tests.clusters.virtual_nodes import pod
from tests.waiting import becomes, create, eventually, get, make_namespace, node_ready, ready

pytestmark = pytest.mark.e2e
NODE = "vn-neighbours"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
HOST = "kubernetes.io/hostname"
EVERY_POD: dict[str, Any] = {"labelSelector": {}, "namespaceSelector": {}}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def clusters(simulated: Lend) -> AsyncIterator[Sandbox]:
    """One lower cluster with one node; lower namespaces have a prefix, and up-mixed and up-routes are shared with others."""
    async with simulated(lower=1) as sandbox:
        cluster = {
            "name": "neighbours",
            "kubeconfig": str(sandbox.lower[0].kubeconfig),
            "nodeName": NODE,
            "namespaces": {"prefix": "up-", "adopt": ["up-mixed", "up-routes"]},
            "follow": ["ingresses"],
        }
        configuration = {
            "apiVersion": "virtual-node.io/v1alpha1",
            "kind": "VirtualNodeConfiguration",
            "kubeconfig": str(sandbox.upper.kubeconfig),
            "kubelet": {"port": 0, "nodeIp": LOOPBACK},
            "clusters": [cluster],
        }
        file = sandbox.directory / "neighbours.yaml"
        file.write_text(json.dumps(configuration), encoding="utf-8")
        await sandbox.start_virtual_node("--config", str(file), name=NODE)
        await node_ready(sandbox.upper, NODE)
        yield sandbox


def labelled(name: str, app: str, **spec: Any) -> dict[str, Any]:
    """Return an upper pod that is bound to the virtual node."""
    made = pod(name, "sleep 3600", node=NODE, nodeName=NODE, **spec)
    made["metadata"]["labels"] = {**made["metadata"].get("labels", {}), "app": app}
    return made


def foreign(name: str, app: str) -> dict[str, Any]:
    """Return a pod that a user of the lower cluster creates."""
    made = labelled(name, app)
    del made["spec"]["nodeSelector"], made["spec"]["nodeName"]
    return made


def terms(kind: str, *found: dict[str, Any]) -> dict[str, Any]:
    """Return the ``affinity`` of a pod with required terms over hosts."""
    return {"affinity": {kind: {REQUIRED: [{"topologyKey": HOST, **term} for term in found]}}}


def of(app: str) -> dict[str, Any]:
    """Return the labelSelector for an application."""
    return {"labelSelector": {"matchLabels": {"app": app}}}


async def is_scheduled(cluster: Cluster, namespace: str, name: str) -> None:
    """Wait until the lower scheduler has chosen a node."""

    async def has_node() -> bool:
        return bool((await get(cluster, namespace, "pod", name))["spec"].get("nodeName"))

    await eventually(has_node, what=f"pod {namespace}/{name} has a node")


async def test_affinity_terms_neither_probe_nor_block_pods_of_others(clusters: Sandbox):
    """The lower cluster has one node, so a term that selects a foreign pod would decide about it."""
    upper, lower = clusters.upper, clusters.lower[0]
    for namespace in ("tenantb", "up-mixed"):
        await make_namespace(lower, namespace)
        await create(lower, namespace, foreign("vault", "vault"))
        await ready(lower, namespace, "vault")
    await tenant(upper, "mixed", "mallory")
    # An upper namespace with the name of the foreign lower one.
    await make_namespace(upper, "tenantb")
    probes = {
        "by-name": terms("podAntiAffinity", {**of("vault"), "namespaces": ["tenantb"]}),
        "by-label": terms(
            "podAntiAffinity",
            {**of("vault"), "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tenantb"}}},
        ),
        "everywhere": terms("podAntiAffinity", {**of("vault"), "namespaceSelector": {}}),
        "beside": terms("podAntiAffinity", of("vault")),
        "blocker": terms(
            "podAntiAffinity",
            {"labelSelector": {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}, "namespaceSelector": {}},
        ),
    }  # fmt: skip
    for name, affinity in probes.items():
        await apply(upper, "mallory", "mixed", labelled(name, "web", **affinity))
    for name in probes:
        await ready(upper, "mixed", name)
    near = terms("podAffinity", {**of("vault"), "namespaceSelector": {}, "namespaces": ["tenantb"]})
    await apply(upper, "mallory", "mixed", labelled("near", "web", **near))
    for namespace in ("tenantb", "up-mixed"):
        await create(lower, namespace, foreign("redis", "redis"))
        await is_scheduled(lower, namespace, "redis")

    async def is_unschedulable() -> bool:
        conditions = (await get(lower, "up-mixed", "pod", "near"))["status"].get("conditions") or []
        return any(one.get("reason") == "Unschedulable" for one in conditions)

    await eventually(is_unschedulable, what="an affinity to pods of others finds none")


async def test_affinity_to_pods_of_another_upper_namespace_is_satisfied(clusters: Sandbox):
    """By name, by the label with the name, and by a label that only the upper namespace has."""
    upper, lower = clusters.upper, clusters.lower[0]
    await make_namespace(upper, "data", labels={"team": "x"})
    await make_namespace(upper, "front")
    await create(upper, "data", labelled("db", "db"))
    await ready(upper, "data", "db")
    selections: dict[str, dict[str, Any]] = {
        "name": {"namespaces": ["data"]},
        "metadata": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "data"}}},
        "label": {"namespaceSelector": {"matchLabels": {"team": "x"}}},
    }
    for name, selection in selections.items():
        near = terms("podAffinity", {**of("db"), **selection})
        await create(upper, "front", labelled(name, "front", **near))
        await ready(upper, "front", name)
        (term,) = (await get(lower, "up-front", "pod", name))["spec"]["affinity"]["podAffinity"][REQUIRED]
        assert (term["namespaces"], "namespaceSelector" in term) == (["up-data"], False)
    # Pods of one upper cluster still repel each other.
    await create(
        upper,
        "front",
        labelled("away", "away", **terms("podAntiAffinity", {**of("db"), "namespaces": ["data"]})),
    )

    async def is_pending() -> bool:
        text = await events(upper, "front", "away")
        return "anti-affinity" in text

    await eventually(is_pending, what="the lower scheduler applies the anti-affinity")


def service(name: str, **spec: Any) -> dict[str, Any]:
    """Return a Service."""
    ports = [{"port": 80}]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"ports": ports, **spec},
    }


async def test_ingress_publishes_no_service_of_others(clusters: Sandbox):
    """Neither by its name, nor by an ExternalName Service."""
    upper, lower = clusters.upper, clusters.lower[0]
    await make_namespace(lower, "up-routes")
    await create(lower, "up-routes", service("internal-admin"))
    await tenant(upper, "routes", "trudy")
    external = service(
        "alias", type="ExternalName", externalName="internal-admin.up-routes.svc.cluster.local"
    )
    paths = [
        {
            "path": f"/{name}",
            "pathType": "Prefix",
            "backend": {"service": {"name": name, "port": {"number": 80}}},
        }
        for name in ("web", "internal-admin", "alias")
    ]
    ingress = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": "all"},
        "spec": {"rules": [{"http": {"paths": paths}}]},
    }
    await apply(
        upper, "trudy", "routes",
        service("web"), service("internal-admin"), external, labelled("published", "web"), ingress,
    )  # fmt: skip

    async def backends() -> list[str]:
        found = await get(lower, "up-routes", "ingresses", fields="metadata.name=all")
        return [
            path["backend"]["service"]["name"]
            for one in found["items"]
            for rule in one["spec"]["rules"]
            for path in rule["http"]["paths"]
        ]

    await becomes(
        backends, ["web", "service-without-copy", "service-without-copy"], what="the copy has its backends"
    )

    async def is_reported() -> bool:
        return "Service internal-admin has no copy" in await events(upper, "routes", "all")

    await eventually(is_reported, what="the tenant is told")
    # The name gets free, so the Service is copied, and the Ingress follows.
    await lower.kubectl("-n", "up-routes", "delete", "service", "internal-admin")
    await upper.kubectl("-n", "routes", "annotate", "service", "internal-admin", "again=1")
    await becomes(backends, ["web", "internal-admin", "service-without-copy"], what="the copy follows")


async def test_labels_and_annotations_give_no_orders_to_lower_programs(clusters: Sandbox):
    """When objects are created, and when they are changed later."""
    upper, lower = clusters.upper, clusters.lower[0]
    await tenant(upper, "orders", "oscar")
    dns, grafana = "external-dns.alpha.kubernetes.io/hostname", "grafana_datasource"
    metadata = {"labels": {"team": "a", grafana: "1"}, "annotations": {dns: "bank.example.com", "note": "x"}}
    exposed = service("exposed")
    config: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "data": {"a": "b"},
        "metadata": {"name": "config"},
    }
    replicated: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "secret"}}
    for made in (exposed, config, replicated):
        made["metadata"] |= metadata
    volumes = [
        {"name": "c", "configMap": {"name": "config"}},
        {"name": "s", "secret": {"secretName": "secret"}},
    ]
    await apply(upper, "oscar", "orders", exposed, config, replicated, labelled("p", "web", volumes=volumes))
    await ready(upper, "orders", "p")
    copies = (("service", "exposed"), ("configmap", "config"), ("secret", "secret"))

    async def keys() -> list[list[str]]:
        found = [(await get(lower, "up-orders", kind, name))["metadata"] for kind, name in copies]
        return [
            sorted(
                key
                for field in ("labels", "annotations")
                for key in one[field]
                if "virtual-node.io" not in key
            )
            for one in found
        ]

    async def ours_only() -> list[list[str]]:
        return [[key for key in names if key != "global"] for names in await keys()]

    await becomes(ours_only, [["note", "team"]] * 3, what="the copies have no orders")
    for kind, name in copies:
        await upper.kubectl(
            "--as=oscar", "-n", "orders", "annotate", kind, name, "tailscale.com/expose=true", "later=x"
        )
    await becomes(ours_only, [["later", "note", "team"]] * 3, what="later changes bring no orders")

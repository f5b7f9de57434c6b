"""Attacks of tenants and lower users on a virtual-node process, for ``bench_noisy_neighbour``."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from tests.benchmarks.load import PodWatch, make_namespace, pod


async def large_services(upper: Client) -> None:
    """Create 40 Services of 0.9 MB in a namespace without virtual pods."""
    await make_namespace(upper, "unrelated")
    ports = [{"name": f"p{number:05}-{'x' * 50}", "port": number + 1} for number in range(6000)]
    for number in range(40):
        service = {
            "metadata": {"name": f"large-{number}", "annotations": {"text": "x" * 250_000}},
            "spec": {"clusterIP": "None", "ports": ports},
        }
        await upper.create(resources.SERVICES, service, namespace="unrelated")


async def products(upper: Client) -> None:
    """Create four pods, each of at most 1 MB, whose translation multiplies two of its parts."""
    for name in ("ports", "items", "keys", "values"):
        await make_namespace(upper, f"products-{name}")
    many = [{"port": number + 1, "name": f"p{number}"} for number in range(4000)]
    service = {"metadata": {"name": "s"}, "spec": {"ports": many}}
    await upper.create(resources.SERVICES, service, namespace="products-ports")
    image = pod("x", namespace="x", node="vn1")["spec"]["containers"][0]
    large = {"metadata": {"name": "large"}, "data": {f"k{number:06}": "" for number in range(60_000)}}
    await upper.create(resources.CONFIG_MAPS, large, namespace="products-keys")
    text = {"text": "x" * 250_000}

    def containers(count: int, **more: Any) -> list[dict[str, Any]]:
        return [{**image, "name": f"c{number}", **more} for number in range(count)]

    field_ref = {"fieldRef": {"fieldPath": "metadata.annotations['virtual-node.io/text']"}}
    items = [
        {"path": f"i{number}", "fieldRef": {"fieldPath": "metadata.annotations"}} for number in range(6000)
    ]
    variables = [{"name": f"V{number}", "valueFrom": field_ref} for number in range(4000)]
    env_from = [{"configMapRef": {"name": "large"}}]
    products: list[tuple[str, dict[str, str], dict[str, Any]]] = [
        ("ports", {}, {"containers": containers(200)}),
        ("items", text, {"volumes": [{"name": "v", "downwardAPI": {"items": items}}]}),
        ("keys", {}, {"containers": containers(400, envFrom=env_from)}),
        ("values", {"virtual-node.io/text": "x" * 250_000}, {"containers": containers(1, env=variables)}),
    ]
    for name, texts, spec in products:
        body = pod("product", namespace=f"products-{name}", node="vn1")
        body["metadata"]["annotations"] = texts
        body["spec"] |= spec
        await upper.create(resources.PODS, body)


async def selectors(upper: Client) -> None:
    """Create 300 namespaces, and in a namespace of vn1 40 NetworkPolicies with 20 namespace selectors each."""
    for number in range(300):
        await make_namespace(upper, f"space-{number}")
    await make_namespace(upper, "policies")
    await upper.create(resources.PODS, pod("user", namespace="policies", node="vn1"))
    for policy in range(40):
        peers = [
            {
                "namespaceSelector": {
                    "matchExpressions": [
                        {"key": f"k{policy}-{peer}-{number}", "operator": "DoesNotExist"}
                        for number in range(50)
                    ]
                }
            }
            for peer in range(20)
        ]
        body = {"metadata": {"name": f"p{policy}"}, "spec": {"podSelector": {}, "ingress": [{"from": peers}]}}
        await upper.create(resources.NETWORK_POLICIES, body, namespace="policies")


async def relabel(upper: Client) -> None:
    """Change the label of a namespace every second."""
    for number in itertools.count():
        patch = {"metadata": {"labels": {"turn": str(number)}}}
        await upper.patch(resources.NAMESPACES, f"space-{number % 300}", patch)
        await asyncio.sleep(1)


async def forged(upper: Client, lower: Client) -> None:
    """As a user of a lower cluster, create ConfigMaps and events of 1 MB that claim to be virtual-node's."""
    cluster_id = (await upper.get(resources.NAMESPACES, "kube-system"))["metadata"]["uid"]
    await make_namespace(lower, "lowteam")
    for number in range(60):
        labels = {names.LABEL_UPPER_CLUSTER: cluster_id, names.LABEL_NODE: "vn1"}
        body = {
            "metadata": {"name": f"forged-{number}", "labels": labels},
            "data": {"text": "x" * 1_000_000},
        }
        await lower.create(resources.CONFIG_MAPS, body, namespace="lowteam")
    async with PodWatch(lower, namespace="policies") as watch:
        await watch.until(watch.seen, 1)
    (mirrored,) = (await lower.list(resources.PODS, namespace="policies")).items
    involved = {"kind": "Pod", "namespace": "policies", "name": mirrored.name, "uid": mirrored.uid}
    for number in range(60):
        event = {
            "metadata": {"name": f"large.{number}"},
            "involvedObject": involved,
            "reason": f"Large{number}",
            "type": "Warning",
            "message": "x",
            "source": {"component": "x" * 1_000_000},
        }
        await lower.create(resources.EVENTS, event, namespace="policies")

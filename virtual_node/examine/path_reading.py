"""Reads the facts about the way of a pod through the APIs of the clusters. Changes nothing."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client, weaknesses
from controller_runtime.client.verbs import Verbs, find
from controller_runtime.errors import ApiError, ConfigError, Forbidden
from controller_runtime.tls.pem import TlsMaterial
from virtual_node.examine import cluster_network, facts
from virtual_node.examine.clusters import CLOCK_SKEW, VERSION, WEAKNESSES
from virtual_node.examine.objects import Json, key, last_seen, ready_endpoints
from virtual_node.examine.reader import (
    DESCHEDULER_LEASE,
    Need,
    Reader,
    kubelet_answer,
    may,
    server_clock,
    server_date,
)
from virtual_node.examine.rules.webhook import client_configs, is_ours
from virtual_node.examine.snapshot import Fact, NotReadError, View, objects
from virtual_node.examine.source import Source, labelled, reads
from virtual_node.translate.endpoints import LABEL_SERVICE
from virtual_node.translate.objects.namespaces import upper_name
from virtual_node.translate.pods import dns

_SYSTEM = "kube-system"
_NEEDS = (
    Need("list", resources.NODES),
    Need("list", resources.PODS),
    Need("get", resources.PODS, subresource="log"),
    Need("list", resources.EVENTS),
    Need("list", resources.LEASES, namespace=names.NODE_LEASES),
    Need("get", resources.LEASES, namespace=_SYSTEM),
    Need("list", resources.DEPLOYMENTS),
    Need("list", resources.MUTATING_WEBHOOK_CONFIGURATIONS),
    Need("list", resources.ENDPOINT_SLICES),
)
_URL_SECONDS = 5.0
BELOW = Fact[Sequence[Json]]("pending pods")
"""Mirrored pods of a lower cluster in phase Pending."""
UPPER_FACTS = (
    *(facts.NODES, facts.LEASES, facts.BOUND, facts.WAITING, facts.COMPONENTS, facts.SWARMS),
    *(
        facts.DENIED,
        facts.INSTALLED,
        facts.EVENTS,
        facts.KUBELETS,
        facts.WEBHOOK,
        facts.SCHEDULERS,
        facts.DESCHEDULERS,
    ),
)
"""The facts of the upper cluster that ``doctor`` reads."""


async def read_version(client: Verbs, cluster: View) -> None:
    """Store a cluster's address, version, clock skew and the connection's weaknesses; called before all other reads.

    Raises:
        ApiError: the cluster does not answer.
    """
    cluster.put(WEAKNESSES, list(weaknesses(client.config)))
    await _read_answer(client, cluster)
    moment = await server_date(client)
    if moment is not None:
        cluster.put(CLOCK_SKEW, (moment - datetime.now(UTC)).total_seconds())


async def _read_answer(client: Verbs, cluster: View) -> None:
    cluster.put(facts.ANSWER, facts.Answer(client.config.server))
    version = await client.version(timeout=client.timeout)
    cluster.put(VERSION, str(version.get("gitVersion") or ""))


async def read_upper(upper: Client, view: View, wanted: Iterable[Fact[Any]], *, namespace: str) -> datetime:
    """Read facts of the upper cluster, with a dry-run pod in ``namespace``; return the time by its clock.

    Raises:
        ApiError: the cluster does not answer; other errors are in the view.
    """
    await _read_answer(upper, view)
    view.put(facts.TRIAL_NAMESPACE, namespace)
    now, _ = await asyncio.gather(server_clock(upper), Source(view, Reader(upper)).load(wanted))
    return now


async def read_lower(lower: Client, view: View) -> None:
    """Read the facts of a lower cluster that need no configuration.

    Raises:
        ApiError: the cluster does not answer, or the caller may not list its nodes and pods.
    """
    await _read_answer(lower, view)
    reader = Reader(lower)
    pending = reader.objects(
        resources.PODS, label_selector=names.LABEL_UPPER_UID, field_selector="status.phase=Pending"
    )
    # The names are only evidence for a remark, so an error there is recorded.
    nodes, below, _ = await asyncio.gather(
        reader.objects(resources.NODES), pending, Source(view, reader).load([facts.NAMES])
    )
    view.put(objects("Node"), nodes)
    view.put(BELOW, below)


@reads(facts.INSTALLED)
async def _installed(source: Source) -> facts.Installation:
    """Return Deployments and pods with the chart's labels, and log lines or a warning of pods that fail."""
    reader, pods = source.reader, await source.fact(facts.COMPONENTS)
    deployments = await labelled(reader, resources.DEPLOYMENTS)
    return facts.Installation(deployments, pods, {key(pod): await reader.last_words(pod) for pod in pods})


@reads(facts.EVENTS)
async def _events(source: Source) -> Sequence[Json]:
    selector = "involvedObject.kind=Pod,type=Warning"
    found = await source.reader.objects(resources.EVENTS, field_selector=selector)
    return sorted(found, key=last_seen)


@reads(facts.DENIED)
async def _denied(source: Source) -> Sequence[str]:
    virtual: Sequence[Json] = ()
    with contextlib.suppress(NotReadError):
        virtual = await source.fact(facts.NODES)
    nodes = (node["metadata"]["name"] for node in virtual)
    proxies = (Need("get", resources.NODES, subresource="proxy", name=name) for name in nodes)
    needs = (*_NEEDS, *proxies, Need("create", resources.PODS, namespace=source.view[facts.TRIAL_NAMESPACE]))
    allowed = await asyncio.gather(*(may(source.reader.client, need.attributes()) for need in needs))
    return [need.words for need, is_allowed in zip(needs, allowed, strict=True) if not is_allowed]


@reads(facts.KUBELETS)
async def _kubelets(source: Source) -> dict[str, facts.Probe]:
    nodes, bound = await source.fact(facts.NODES), list[Json]()
    with contextlib.suppress(NotReadError):
        bound = list(await source.fact(facts.BOUND))
    by_node: dict[str, list[Json]] = {node["metadata"]["name"]: [] for node in nodes}
    for pod in bound:
        by_node.setdefault(pod["spec"].get("nodeName") or "", []).append(pod)
    found = await asyncio.gather(
        *(kubelet_answer(source.reader.client, node, by_node[node["metadata"]["name"]]) for node in nodes)
    )
    return {node["metadata"]["name"]: probe for node, probe in zip(nodes, found, strict=True)}


@reads(facts.SCHEDULERS)
async def _schedulers(source: Source) -> Sequence[Json]:
    found = await find(source.reader.client, resources.LEASES, facts.SCHEDULER_LEASE, namespace=_SYSTEM)
    return [found] if found else []


@reads(facts.DESCHEDULERS)
async def _deschedulers(source: Source) -> Sequence[Json]:
    """Return the descheduler's Leases. With the chart, there is one in the release's namespace."""
    try:
        selector = f"metadata.name={DESCHEDULER_LEASE}"
        return await source.reader.objects(resources.LEASES, field_selector=selector)
    except Forbidden:
        found = await find(source.reader.client, resources.LEASES, DESCHEDULER_LEASE, namespace=_SYSTEM)
        return [found] if found else []


@reads(facts.DOMAIN)
async def _domain(source: Source) -> str:
    return (await cluster_network.read_dns(source.reader.client)).domain


@reads(facts.WEBHOOK)
async def _webhook(source: Source) -> facts.Webhook:
    """Return configurations, endpoints and answers of the webhook, and the result of creating a dry-run pod."""
    reader, namespace = source.reader, source.view[facts.TRIAL_NAMESPACE]
    ours = list(filter(is_ours, await reader.objects(resources.MUTATING_WEBHOOK_CONFIGURATIONS)))
    if not ours:
        return facts.Webhook(namespace=namespace)
    clients = [client for _, client in client_configs(ours)]
    services = [client["service"] for client in clients if client.get("service")]
    urls = {client["url"]: client for client in clients if client.get("url")}
    endpoints, answers, (trial, pod) = await asyncio.gather(
        asyncio.gather(*(_ready_endpoints(reader, service) for service in services)),
        asyncio.gather(*(_answer(url, client) for url, client in urls.items())),
        _try(reader.client, namespace),
    )
    named = [f"{service['namespace']}/{service['name']}" for service in services]
    return facts.Webhook(
        configurations=ours,
        endpoints=dict(zip(named, endpoints, strict=True)),
        urls=dict(zip(urls, answers, strict=True)),
        dry_run=trial,
        dry_run_pod=pod,
        namespace=namespace,
    )


async def _ready_endpoints(reader: Reader, service: Json) -> int:
    selector = f"{LABEL_SERVICE}={service['name']}"
    slices = await reader.objects(
        resources.ENDPOINT_SLICES, namespace=service["namespace"], label_selector=selector
    )
    return ready_endpoints(slices)


async def _answer(url: str, client: Json) -> facts.Probe:
    import aiohttp  # noqa: PLC0415 - it takes longer than the requests of short commands

    try:
        bundle = base64.b64decode(client.get("caBundle") or "")
        context = TlsMaterial("caBundle", bundle or None).context()
        limit = aiohttp.ClientTimeout(total=_URL_SECONDS)
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url, ssl=context) as answer:
            return facts.Probe(answer.status)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError, ConfigError) as error:
        return facts.Probe(0, str(error) or type(error).__name__)


async def _try(upper: Verbs, namespace: str) -> tuple[facts.Probe, Json]:
    try:
        made = await upper.create(
            resources.PODS, webhook_test_pod(), namespace=namespace, params={"dryRun": "All"}
        )
    except ApiError as error:
        return facts.Probe(error.code, error.message), {}
    return facts.Probe(201), made


def webhook_test_pod() -> dict[str, Any]:
    """Return a labelled pod with a node selector; Pod Security "restricted" and quotas for requests admit it."""
    amounts = {"cpu": "1m", "memory": "1Mi"}
    return {
        "metadata": {"generateName": "virtual-node-doctor-", "labels": {names.LABEL_VIRTUAL_POD: "true"}},
        "spec": {
            "nodeSelector": {facts.PROBE_SELECTOR: "probe"},
            "automountServiceAccountToken": False,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "probe",
                    "image": "registry.k8s.io/pause:3.10",
                    "resources": {"requests": amounts, "limits": amounts},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }


@reads(facts.NAMES)
async def _names(source: Source) -> facts.Names:
    """Return the names of a lower cluster, by its configuration if that is known, otherwise by its namespaces."""
    lower, cluster = source.reader.client, source.view.get(facts.CONFIGURED)
    domain = (await cluster_network.read_dns(lower)).domain
    if cluster is not None:
        return facts.Names(
            cluster=cluster.name,
            renamed=dns.renamed(cluster.namespaces),
            domain=domain,
            installed=await cluster_network.name_servers(lower) if cluster.dns.servers else [],
            servers=cluster.dns.servers,
            namespaces=cluster.namespaces,
        )
    spaces = await lower.list(resources.NAMESPACES, label_selector=names.LABEL_UPPER_CLUSTER)
    renamed = sorted(
        (space.name, name) for space in spaces.items if (name := upper_name(space)) != space.name
    )
    return facts.Names(
        renamed=next((f"namespace {name} is {below} there" for below, name in renamed), ""),
        domain=domain,
        installed=await cluster_network.name_servers(lower),
    )

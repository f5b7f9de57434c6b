"""Sends all requests of ``doctor``; draws no conclusions and changes nothing.

A failed read is recorded and does not stop others; ``chain`` then judges links as unknown.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import ssl
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import aiohttp

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client, find
from controller_runtime.errors import ApiError, Forbidden
from controller_runtime.resources import Resource
from virtual_node.commands.common import cluster_dns, installation, name_server
from virtual_node.commands.common.installation import swarms
from virtual_node.commands.doctor.admission import client_configs, is_ours
from virtual_node.commands.doctor.facts import (
    PROBE_SELECTOR,
    SCHEDULER_LEASE,
    DoctorFacts,
    LowerFacts,
    Webhook,
)
from virtual_node.examine import probes
from virtual_node.examine.leases import active_lease
from virtual_node.examine.objects import Json, is_virtual, last_seen
from virtual_node.examine.probes import Probe
from virtual_node.examine.reader import DESCHEDULER_LEASE, NODE_LEASES, Need, missing_rights
from virtual_node.translate.objects.namespaces import upper_name
from virtual_node.translate.services.endpoints import LABEL_SERVICE

_SYSTEM = "kube-system"
_NEEDS = (
    Need("list", resources.NODES),
    Need("list", resources.PODS),
    Need("get", resources.PODS, subresource="log"),
    Need("list", resources.EVENTS),
    Need("list", resources.LEASES, namespace=NODE_LEASES),
    Need("get", resources.LEASES, namespace=_SYSTEM),
    Need("list", resources.DEPLOYMENTS),
    Need("list", resources.MUTATING_WEBHOOK_CONFIGURATIONS),
    Need("list", resources.ENDPOINT_SLICES),
)


async def read_upper(upper: Client, *, namespace: str) -> DoctorFacts:
    """Return what was read of the upper cluster.

    Args:
        upper: client of the upper cluster.
        namespace: namespace of the dry-run pod.
    """
    answer = await probes.version(upper)
    if not answer.ok:
        return DoctorFacts(now=datetime.now(UTC), server=upper.config.server, answer=answer)
    return await _Look(upper, namespace).facts(answer)


async def read_lower(lower: Client, file: str) -> LowerFacts:
    """Return what was read of the lower cluster of a kubeconfig ``file``; errors are in ``answer``."""
    answer = await probes.version(lower)
    if not answer.ok:
        return LowerFacts(file, answer)
    try:
        nodes = await _list(lower, resources.NODES)
        pods = await _list(
            lower, resources.PODS, label_selector=names.LABEL_UPPER_UID, field_selector="status.phase=Pending"
        )
    except ApiError as error:
        return LowerFacts(file, Probe(error.code, error.message))
    found = LowerFacts(file, answer, nodes, pods)
    with contextlib.suppress(ApiError):  # only evidence for a warning
        spaces = await lower.list(resources.NAMESPACES, label_selector=names.LABEL_UPPER_CLUSTER)
        renamed = {one.name: name for one in spaces.items if (name := upper_name(one)) != one.name}
        domain = (await cluster_dns.read(lower)).domain
        servers = await name_server.installed(lower)
        return dataclasses.replace(found, domain=domain, renamed=renamed, name_servers=servers)
    return found


async def read_domain(upper: Client) -> str:
    """Return the DNS domain of the upper cluster; empty: unknown."""
    with contextlib.suppress(ApiError):
        return (await cluster_dns.read(upper)).domain
    return ""


@dataclass(slots=True)
class _Look:
    upper: Client
    namespace: str
    unread: dict[str, str] = field(default_factory=dict)

    async def facts(self, answer: Probe) -> DoctorFacts:
        """Return all facts; reads that do not depend on each other run concurrently."""
        upper = self.upper
        found = await self._read(nodes=_list(upper, resources.NODES))
        nodes: list[Json] = found.get("nodes", [])
        virtual = [node["metadata"]["name"] for node in nodes if is_virtual(node)]
        found |= await self._read(bound=self._bound(virtual))
        bound: dict[str, list[Json]] = found.get("bound", {})
        now, kubelets, more = await asyncio.gather(
            probes.clock(upper),
            asyncio.gather(
                *(
                    probes.kubelet(upper, node, bound.get(node["metadata"]["name"], ()))
                    for node in nodes
                    if is_virtual(node)
                )
            ),
            self._read(
                denied=self._denied(virtual),
                leases=self._leases(),
                pending=_list(upper, resources.PODS, field_selector="status.phase=Pending"),
                events=self._events(),
                installation=installation.read(upper),
                webhook=read_webhook(upper, self.namespace),
                swarms=swarms(upper),
                scheduler=find(upper, resources.LEASES, SCHEDULER_LEASE, namespace=_SYSTEM),
                descheduler=self._descheduler_lease(),
            ),
        )
        return DoctorFacts(
            now=now,
            server=upper.config.server,
            answer=answer,
            unread=self.unread,
            kubelets=dict(zip(virtual, kubelets, strict=True)),
            **found,
            **more,
        )

    async def _read(self, **reading: Awaitable[Any]) -> dict[str, Any]:
        """Return the results of the reads by field; record why a field could not be read, and omit it."""

        async def read(field: str, pending: Awaitable[Any]) -> None:
            try:
                found[field] = await pending
            except ApiError as error:
                self.unread[field] = str(error)

        found: dict[str, Any] = {}
        # Not a TaskGroup, because its ExceptionGroup would hide a ConfigError, such as of an exec plugin.
        await asyncio.gather(*(read(field, pending) for field, pending in reading.items()))
        return found

    async def _leases(self) -> dict[str, Json]:
        """Return the Leases of nodes, by name."""
        listed = await _list(self.upper, resources.LEASES, namespace=NODE_LEASES)
        return {lease["metadata"]["name"]: lease for lease in listed}

    async def _denied(self, virtual: Sequence[str]) -> list[str]:
        proxies = (Need("get", resources.NODES, subresource="proxy", name=name) for name in virtual)
        needs = (*_NEEDS, *proxies, Need("create", resources.PODS, namespace=self.namespace))
        return [one.words for one in await missing_rights(self.upper, needs)]

    async def _events(self) -> list[Json]:
        selector = "involvedObject.kind=Pod,type=Warning"
        return sorted(await _list(self.upper, resources.EVENTS, field_selector=selector), key=last_seen)

    async def _bound(self, virtual: Sequence[str]) -> dict[str, Sequence[Json]]:
        """Return the pods of each virtual node."""
        listed = await asyncio.gather(
            *(_list(self.upper, resources.PODS, field_selector=f"spec.nodeName={name}") for name in virtual)
        )
        return dict(zip(virtual, listed, strict=True))

    async def _descheduler_lease(self) -> Json | None:
        """Return the descheduler's Lease. With the chart, it is in the release's namespace."""
        selector = f"metadata.name={DESCHEDULER_LEASE}"
        try:
            return active_lease(await _list(self.upper, resources.LEASES, field_selector=selector))
        except Forbidden:
            return await find(self.upper, resources.LEASES, DESCHEDULER_LEASE, namespace=_SYSTEM)


async def _list(client: Client, resource: Resource, **selection: Any) -> list[Json]:
    return [found.to_dict() for found in (await client.list(resource, **selection)).items]


_URL_SECONDS = 5.0


async def read_webhook(upper: Client, namespace: str) -> Webhook:
    """Return configurations, endpoints and answers of the webhook, and the result of creating a dry-run pod.

    Raises:
        ApiError: the configurations or endpoints cannot be read_webhook.
    """
    listed = await upper.list(resources.MUTATING_WEBHOOK_CONFIGURATIONS)
    ours = [found for one in listed.items if is_ours(found := one.to_dict())]
    if not ours:
        return Webhook(namespace=namespace)
    clients = [client for _, client in client_configs(ours)]
    services = [client["service"] for client in clients if client.get("service")]
    urls = {client["url"]: client for client in clients if client.get("url")}
    endpoints, answers, (trial, pod) = await asyncio.gather(
        asyncio.gather(*(_ready_endpoints(upper, service) for service in services)),
        asyncio.gather(*(_answer(url, client) for url, client in urls.items())),
        _try(upper, namespace),
    )
    named = [f"{service['namespace']}/{service['name']}" for service in services]
    return Webhook(
        configurations=ours,
        endpoints=dict(zip(named, endpoints, strict=True)),
        urls=dict(zip(urls, answers, strict=True)),
        dry_run=trial,
        dry_run_pod=pod,
        namespace=namespace,
    )


async def _ready_endpoints(upper: Client, service: Json) -> int:
    slices = await upper.list(
        resources.ENDPOINT_SLICES,
        namespace=service["namespace"],
        label_selector=f"{LABEL_SERVICE}={service['name']}",
    )
    return sum(
        # The API defines an unset ready condition as ready.
        (endpoint.get("conditions") or {}).get("ready") is not False
        for one in slices.items
        for endpoint in one.to_dict().get("endpoints") or ()
    )


async def _answer(url: str, client: Json) -> Probe:
    try:
        bundle = base64.b64decode(client.get("caBundle") or "").decode()
        context = ssl.create_default_context(cadata=bundle or None)
        limit = aiohttp.ClientTimeout(total=_URL_SECONDS)
        async with aiohttp.ClientSession(timeout=limit) as session, session.get(url, ssl=context) as answer:
            return Probe(answer.status)
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return Probe(0, str(error) or type(error).__name__)


async def _try(upper: Client, namespace: str) -> tuple[Probe, Json]:
    try:
        made = await upper.create(
            resources.PODS, webhook_test_pod(), namespace=namespace, params={"dryRun": "All"}
        )
    except ApiError as error:
        return Probe(error.code, error.message), {}
    return Probe(201), made


def webhook_test_pod() -> dict[str, Any]:
    """Return a labelled pod with a node selector; Pod Security "restricted" and quotas for requests admit it."""
    amounts = {"cpu": "1m", "memory": "1Mi"}
    return {
        "metadata": {"generateName": "virtual-node-doctor-", "labels": {names.LABEL_VIRTUAL_POD: "true"}},
        "spec": {
            "nodeSelector": {PROBE_SELECTOR: "probe"},
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

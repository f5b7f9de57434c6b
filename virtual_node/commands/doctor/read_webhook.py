"""Reads the webhook for ``doctor``: its configuration and endpoints, and the result of a dry-run pod."""

from __future__ import annotations

import asyncio
import base64
import ssl
from typing import Any

import aiohttp

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from virtual_node.commands.common.probes import Probe
from virtual_node.commands.doctor.admission import client_configs, is_ours
from virtual_node.commands.doctor.facts import PROBE_SELECTOR, Webhook
from virtual_node.health.objects import Json

_URL_SECONDS = 5.0


async def read(upper: Client, namespace: str) -> Webhook:
    """Return configurations, endpoints and answers of the webhook, and the result of creating a dry-run pod.

    Raises:
        ApiError: the configurations or endpoints cannot be read.
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
        label_selector=f"kubernetes.io/service-name={service['name']}",
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

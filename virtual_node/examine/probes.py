"""Sends single requests to a cluster and returns their results without judging them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from controller_runtime import resources
from controller_runtime.apimachinery.decoding import decoder
from controller_runtime.client.verbs import Verbs
from controller_runtime.errors import ApiError
from virtual_node.examine.objects import Json, ended, statuses
from virtual_node.examine.path import PROXY_REFUSES, Probe

_LOG_LINES = 5
_decode_object = decoder(dict[str, Any])


async def version(client: Verbs) -> Probe:
    """Return the result of requesting ``/version``, with the version or the error as its text."""
    try:
        answer = _decode_object(await client.request("GET", "/version"))
        return Probe(200, str(answer.get("gitVersion", "?")))
    except msgspec.DecodeError as error:
        return Probe(0, f"{client.config.server}: /version is no JSON: {error}")
    except ApiError as error:
        return Probe(error.code, error.message)


async def clock(client: Verbs) -> datetime:
    """Return the server's time, or this machine's time if the server does not answer or sends no date.

    Leases are compared with the server's time, because this machine's clock may be wrong.
    """
    try:
        return await date(client) or datetime.now(UTC)
    except ApiError:
        return datetime.now(UTC)


async def date(client: Verbs) -> datetime | None:
    """Return the server's time; None: the response has no valid Date header.

    Raises:
        ApiError: the server does not answer.
    """
    from email.utils import parsedate_to_datetime  # noqa: PLC0415 - takes 10 ms, and not every command needs it

    async with client.stream("GET", "/version", head_timeout=client.timeout) as response:
        text = response.headers.get("Date", "")
    try:
        return parsedate_to_datetime(text).astimezone(UTC)
    except (ValueError, TypeError):
        return None


async def kubelet(upper: Verbs, node: Json, bound: Sequence[Json]) -> Probe:
    """Return the result of requesting ``/healthz`` of a virtual node's kubelet API through the API server.

    Args:
        upper: the upper cluster.
        node: the virtual node.
        bound: pods on the node. A running pod's log is read instead if the node's address is loopback or
            link-local, because the API server does not proxy to such addresses.
    """
    path = resources.NODES.path(name=node["metadata"]["name"], subresource="proxy/healthz")
    probe = await _get(upper, path)
    running = next((pod for pod in bound if (pod.get("status") or {}).get("phase") == "Running"), None)
    if PROXY_REFUSES not in probe.text or running is None:
        return probe
    # The API server reads logs over the same connection to the kubelet API.
    metadata = running["metadata"]
    path = resources.PODS.path(namespace=metadata["namespace"], name=metadata["name"], subresource="log")
    container = running["spec"]["containers"][0]["name"]
    log = await _get(upper, path, {"container": container, "tailLines": "1"})
    # Any other error comes from the kubelet API itself or the lower cluster, so the kubelet API was reached.
    is_conclusive = log.ok or log.code in {0, 401, 403, 504} or _address(node) in log.text
    return log if is_conclusive else Probe(200)


async def previous_log(client: Verbs, pod: Mapping[str, Any]) -> list[str]:
    """Return the last log lines of a pod's first failed container, else of its first ended one; empty: none ended.

    Raises:
        ApiError: the log cannot be read.
    """
    metadata = pod["metadata"]
    for status in sorted(statuses(pod), key=lambda one: not ended(one).get("exitCode")):
        if not ended(status):
            continue
        previous = "terminated" not in (status.get("state") or {})
        path = resources.PODS.path(namespace=metadata["namespace"], name=metadata["name"], subresource="log")
        params = {
            "container": status["name"],
            "tailLines": str(_LOG_LINES),
            "previous": "true" if previous else "false",
        }
        return (await client.request("GET", path, params=params)).decode("utf-8", "replace").splitlines()
    return []


async def _get(client: Verbs, path: str, params: Mapping[str, str] | None = None) -> Probe:
    try:
        return Probe(200, (await client.request("GET", path, params=params)).decode("utf-8", "replace"))
    except ApiError as error:
        return Probe(error.code, error.message)


def _address(node: Json) -> str:
    """Return ``host:port`` of a node's kubelet API."""
    status = node.get("status") or {}
    hosts = [
        address["address"] for address in status.get("addresses") or () if address["type"] == "InternalIP"
    ]
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port", "")
    return f"{hosts[0] if hosts else node['metadata']['name']}:{port}"

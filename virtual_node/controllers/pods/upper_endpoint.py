"""Finds where pods of lower clusters reach the upper API server, and whether its certificate fits."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from clusterset.model.pod.api_access import ROOT_CA, SERVICE
from controller_runtime import resources
from controller_runtime.auth.proxies import split_url
from controller_runtime.client.client import Client, find_listed
from controller_runtime.errors import ApiError, ConfigError, NotFound
from controller_runtime.tls.client_tls import TlsMaterial
from controller_runtime.util import event_loop
from virtual_node.translate.pods import api_server
from virtual_node.translate.pods.api_server import NAME, Endpoint
from virtual_node.translate.services.services import upper_addresses

FRESH = 60.0
"""Seconds for which an endpoint is used before its name is resolved again."""
_PATIENCE = 3.0
"""Seconds for each step. The first pod waits for them."""
_ADVICE = (
    "set kubernetesServiceURL to a URL of the upper API server that pods of the lower clusters can reach"
)


@dataclass(eq=False, repr=False)
class UpperEndpoint:
    """Keeps the ``Endpoint`` of the upper API server."""

    upper: Client
    url: str
    """``kubernetesServiceURL``; empty: derived from the URL that this process uses."""
    _found: Endpoint | None = None
    _until: float = 0.0
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def get(self) -> Endpoint:
        """Return the endpoint, at most a minute old. Errors are in the endpoint."""
        async with self._lock:
            now = event_loop.now()
            if self._found is None or now >= self._until:
                self._found = await find(self.upper, self.url)
                self._until = now + FRESH
            return self._found


async def find(upper: Client, url: str = "") -> Endpoint:
    """Return where pods of lower clusters reach the upper API server.

    Without a URL it is the URL of the client, unless that leads elsewhere from another machine or cluster. Then it is an
    address that the API server advertises in EndpointSlice ``default/kubernetes``.

    Args:
        upper: client of the upper cluster.
        url: ``kubernetesServiceURL``.
    """
    host, port = api_server.host_and_port(url or upper.config.server)
    if url and api_server.is_local(host):
        text = f"Pods cannot reach kubernetesServiceURL {url}, which is valid only on one machine: {_ADVICE}"
        return Endpoint(host, port, problem=text)
    if not url and (why := await _unusable(upper, host)):
        with contextlib.suppress(ApiError, ConfigError):
            if (advertised := await _advertised(upper)) is not None:
                return await _verified(upper, advertised)
        text = f"Pods cannot reach the upper API server at {upper.config.server}, because {why}: {_ADVICE}"
        return Endpoint("", 0, problem=text)
    return await _verified(upper, Endpoint(host, port, ips=await _resolved(host)))


async def _unusable(upper: Client, host: str) -> str:
    """Return why the client's URL cannot be used from lower clusters; empty: no reason is known."""
    if api_server.is_local(host):
        return "its address is valid only on the machine of the virtual node"
    if split_url(upper.config.server).path.strip("/"):
        return "it has a path, which in-cluster clients cannot use"
    cluster_ips: Sequence[str] = ()
    with contextlib.suppress(ApiError, ConfigError):
        service = await find_listed(upper, resources.SERVICES, SERVICE[1], namespace=SERVICE[0])
        cluster_ips = upper_addresses({"spec": service.spec or {}}) if service is not None else ()
    if upper.config.source == "in-cluster" or api_server.is_cluster_internal(host, cluster_ips):
        return "it is an address of a Service in the upper cluster"
    return ""


async def _advertised(upper: Client) -> Endpoint | None:
    """Return the addresses of the upper API servers from their EndpointSlice; None: it has none that others can use."""
    found = await find_listed(upper, resources.ENDPOINT_SLICES, SERVICE[1], namespace=SERVICE[0])
    body = {} if found is None else found.to_dict()
    ports = [int(port["port"]) for port in body.get("ports") or () if port.get("port")]
    addresses = [
        address
        for endpoint in body.get("endpoints") or ()
        for address in endpoint.get("addresses") or ()
        if not api_server.is_local(address)
    ]
    return Endpoint(addresses[0], ports[0], ips=addresses) if ports and addresses else None


async def _resolved(host: str) -> Sequence[str]:
    """Return the IP addresses of a host, sorted: IPv4, or IPv6 if there are no others; empty: it has none."""
    if api_server.is_ip(host):
        return [host]
    try:
        async with asyncio.timeout(_PATIENCE):
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, TimeoutError, UnicodeError):
        return ()
    ips = sorted({str(one[4][0]) for one in found})
    return [ip for ip in ips if ":" not in ip] or ips


async def _verified(upper: Client, endpoint: Endpoint) -> Endpoint:
    """Return the endpoint with the result of TLS handshakes as pods make them; if we cannot connect, nothing is known."""
    try:
        # Pods trust only the CA in this ConfigMap.
        found = await upper.get(resources.CONFIG_MAPS, ROOT_CA, namespace=SERVICE[0])
        authority = str((found.get("data") or {}).get("ca.crt") or "").encode()
        context = TlsMaterial(source=ROOT_CA, authority=authority).context()
    except (ApiError, ConfigError, NotFound):
        return endpoint
    refusal = await _refusal(context, endpoint, endpoint.host)
    if not refusal:
        return endpoint
    if endpoint.ip and not await _refusal(context, endpoint, NAME):
        return replace(endpoint, uses_name=True)
    text = (
        f"The certificate of the upper API server at {endpoint.host}:{endpoint.port} is refused with the CA that pods get "
        f"({refusal}): set kubernetesServiceURL to a host in the certificate"
    )
    return replace(endpoint, problem=text)


async def _refusal(context: ssl.SSLContext, endpoint: Endpoint, name: str) -> str:
    """Return why the certificate of an endpoint is not valid for a name; empty: it is, or there is no connection."""
    try:
        async with asyncio.timeout(_PATIENCE):
            _, writer = await asyncio.open_connection(
                endpoint.ip or endpoint.host, endpoint.port, ssl=context, server_hostname=name
            )
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except (OSError, TimeoutError, UnicodeError, ValueError):
        return ""
    writer.transport.abort()
    return ""

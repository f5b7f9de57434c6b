"""``join --via konnectivity``: the tunnel to a lower cluster that the upper cluster cannot reach."""

from __future__ import annotations

import argparse
import asyncio
import base64
import secrets
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.client import dialing, raw_http
from controller_runtime.client.client import Client, find
from controller_runtime.client.raw_http import RequestHead
from controller_runtime.errors import ApiError, ConfigError, ConnectionFailed
from controller_runtime.tls.key_pairs import covers, share_left
from controller_runtime.util import event_loop
from virtual_node.commands.lower_cluster import account as lower_account
from virtual_node.commands.lower_cluster import applied
from virtual_node.commands.lower_cluster.applied import is_marked, say
from virtual_node.rights import tunnel
from virtual_node.rights.tunnel import Tunnel

KONNECTIVITY = "konnectivity"
_STEP = "tunnel"
_KINDS = {
    "Secret": resources.SECRETS,
    "Service": resources.SERVICES,
    "Deployment": resources.DEPLOYMENTS,
}
_POLL = 0.5
_RENEW_SHARE = 0.1
"""Share of the certificates' validity below which another ``join`` makes new ones."""


def check(options: argparse.Namespace) -> None:
    """Refuse unusable flags.

    Raises:
        ConfigError: names the flag.
    """
    if bool(options.via) != bool(options.tunnel_address):
        raise ConfigError(
            f"--tunnel-address: HOST:PORT at which the lower cluster reaches the proxy server; with --via {KONNECTIVITY}, "
            "and only with it"
        )
    if options.via:
        try:
            tunnel.address(options.tunnel_address)
        except ValueError as error:
            raise ConfigError(f"--tunnel-address: {error}") from None


async def ensure(
    options: argparse.Namespace, upper: Client, lower: Client, *, cluster_id: str
) -> lower_account.Proxy:
    """Create or update proxy server and agent, wait until they are connected, and return the way through them.

    Args:
        options: the parsed command line. A dry run changes nothing.
        upper: client of the upper cluster.
        lower: client of the lower cluster.
        cluster_id: identity of the upper cluster.

    Raises:
        ConfigError: an object is not ours, or the agent is not connected in time.
    """
    host, port = tunnel.address(options.tunnel_address)
    made = Tunnel(
        options.name,
        cluster_id,
        options.namespace,
        options.account_namespace,
        host,
        port,
        images=options.tunnel_images,
    )
    data = await _certificates(upper, made)
    if options.dry_run:
        say(
            _STEP,
            f"would run a proxy server {made.namespace}/{made.name}, and its agent in the lower cluster",
        )
    else:
        for where, client, bodies in (
            ("upper", upper, tunnel.upper_objects(made, data)),
            ("lower", lower, tunnel.lower_objects(made, data)),
        ):
            for body in bodies:
                await applied.apply(client, _KINDS[body["kind"]], body, step=_STEP, by="join", where=where)
        await _connected(upper, lower, made, options.timeout)
    return lower_account.Proxy(
        made.proxy_url, tunnel.SERVER, data["ca.crt"], data["client.crt"], data["client.key"]
    )


async def _certificates(upper: Client, made: Tunnel) -> dict[str, str]:
    """Return the certificates in the Secret; new ones if it is missing, for another address, or soon expired."""
    found = await find(upper, resources.SECRETS, made.name, namespace=made.namespace)
    if found is not None and is_marked(found):
        data = {key: base64.b64decode(value) for key, value in (found.get("data") or {}).items()}
        server = data.get("server.crt", b"")
        current = server and covers(server, [made.host, made.proxy_host])
        if current and share_left(server, datetime.now(UTC)) > _RENEW_SHARE:
            return {key: value.decode() for key, value in data.items()}
    return tunnel.certificates(made)


async def _connected(upper: Client, lower: Client, made: Tunnel, seconds: float) -> None:
    """Wait until the agent's Deployment has a ready pod, which is ready while it is connected.

    Raises:
        ConfigError: it is not connected in time.
    """
    started = event_loop.now()
    while True:
        waiting = [
            where
            for where, client, name, space in (
                ("upper", upper, made.name, made.namespace),
                ("lower", lower, made.lower_name, made.lower_namespace),
            )
            if not _is_available(await find(client, resources.DEPLOYMENTS, name, namespace=space))
        ]
        if not waiting:
            say(_STEP, f"the agent is connected to {made.host}:{made.port}")
            return
        if event_loop.now() > started + seconds:
            raise ConfigError(
                f"no agent is connected after {seconds:.0f} s; not ready in the cluster: {', '.join(waiting)}. In the lower "
                f"cluster: 'kubectl --namespace {made.lower_namespace} logs deployment/{made.lower_name}'. It must reach "
                f"{made.host}:{made.port}, which leads to Service {made.namespace}/{made.name}-agents. Then run the command "
                "again."
            )
        await asyncio.sleep(_POLL)


def _is_available(deployment: dict[str, Any] | None) -> bool:
    """Report whether the newest pod of a Deployment of one replica is ready."""
    status = (deployment or {}).get("status") or {}
    generation = ((deployment or {}).get("metadata") or {}).get("generation")
    current = status.get("observedGeneration") == generation
    return current and status.get("updatedReplicas") == 1 and status.get("availableReplicas") == 1


async def prove(upper: Client, namespace: str, pod: str, *, seconds: float) -> None:
    """Read a pod's log and open an exec stream to it, through the upper API server.

    Raises:
        ConfigError: one of both does not work in time.
    """
    started = event_loop.now()
    while True:
        try:
            async with asyncio.timeout(30):
                log = resources.PODS.path(namespace=namespace, name=pod, subresource="log")
                async with upper.receive("GET", log):
                    pass
                await _exec(upper, namespace, pod)
        except (ApiError, ConnectionFailed, OSError, ValueError) as error:
            if event_loop.now() > started + min(seconds, 30.0):
                raise ConfigError(
                    f"a pod runs, but its log or an exec does not work: {str(error) or 'no answer in time'}"
                ) from None
            await asyncio.sleep(_POLL)
        else:
            say(_STEP, "log and exec of the pod work through the tunnel")
            return


async def _exec(upper: Client, namespace: str, pod: str) -> None:
    """Open an exec stream, and close it.

    Raises:
        OSError: the API server cannot be reached.
        ValueError: it did not open the stream.
    """
    config = upper.config
    path = resources.PODS.path(namespace=namespace, name=pod, subresource="exec")
    headers = (
        ("Host", raw_http.authority(config.host, config.port)),
        *(await config.headers()).items(),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", base64.b64encode(secrets.token_bytes(16)).decode()),
        ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
    )
    target = f"{config.path_prefix.rstrip('/')}{path}?command=/pause&command=-v&stdout=true"
    connection = await dialing.connect(config)
    head, rest = await raw_http.ask_head(connection.transport, RequestHead("GET", target, headers).encode())
    connection.transport.abort()
    if head.status != 101:
        raise ValueError(
            f"exec was answered {head.status} {head.reason} {rest[:200].decode(errors='replace')}"
        )


async def remove(
    options: argparse.Namespace, upper: Client, lower: Client | None, *, cluster_id: str
) -> None:
    """Delete the objects that ``ensure`` created; without ``lower`` only those in the upper cluster."""
    name, kinds, dry = tunnel.upper_name(options.name), list(_KINDS.values()), options.dry_run
    if lower is not None:
        below = tunnel.lower_name(cluster_id, options.name)
        await applied.remove(lower, kinds, below, namespace=options.account_namespace, step=_STEP, dry=dry)
    for each in (f"{name}-agents", name):
        await applied.remove(upper, kinds, each, namespace=options.namespace, step=_STEP, dry=dry)

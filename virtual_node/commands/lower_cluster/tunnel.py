"""``join --via konnectivity``: the tunnel to a lower cluster that the upper cluster cannot reach."""

from __future__ import annotations

import argparse
import asyncio
import base64
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.client import dialing
from controller_runtime.client.client import Client, find
from controller_runtime.client.dialing import RequestHead
from controller_runtime.errors import ApiError, ConfigError, ConnectionFailed
from controller_runtime.tls.key_pairs import covers, share_left
from controller_runtime.util import event_loop
from virtual_node.commands.lower_cluster import account as lower_account
from virtual_node.commands.lower_cluster import applied, waiting
from virtual_node.commands.lower_cluster.applied import is_marked, say, secret_data
from virtual_node.config import program
from virtual_node.rights import tunnel
from virtual_node.rights.tunnel import Tunnel

KONNECTIVITY, DIRECT = "konnectivity", "direct"
"""Values of ``--via``."""
_STEP = "tunnel"
_KINDS = {"Secret": resources.SECRETS, "Deployment": resources.DEPLOYMENTS}
_POLL = 0.5
_RENEW_SHARE = 0.1
"""Share of the certificates' validity below which another ``join`` makes new ones."""


def check(options: argparse.Namespace) -> None:
    """Refuse unusable flags.

    Raises:
        ConfigError: names the flag.
    """
    if options.tunnel_address and options.via != KONNECTIVITY:
        raise ConfigError(f"--tunnel-address: only with --via {KONNECTIVITY}")
    if options.tunnel_address:
        try:
            tunnel.address(options.tunnel_address)
        except ValueError as error:
            raise ConfigError(f"--tunnel-address: {error}") from None
    if options.via == KONNECTIVITY and len(options.name) > tunnel.MAX_NAME:
        raise ConfigError(
            f"NAME: at most {tunnel.MAX_NAME} characters with --via {KONNECTIVITY}, because names of Services contain it"
        )


async def kept(upper: Client, options: argparse.Namespace) -> dict[str, str]:
    """Return what an earlier ``join`` wrote about the tunnel of a lower cluster; empty: it has none."""
    name = tunnel.upper_name(options.name)
    found = await find(upper, resources.SECRETS, name, namespace=options.namespace)
    return secret_data(found) if found is not None and is_marked(found) else {}


def known(data: Mapping[str, str], entry: Mapping[str, Any] | None) -> dict[str, str]:
    """Return what is known about the tunnel of a lower cluster; empty: it has none.

    Args:
        data: result of ``kept``.
        entry: the cluster's entry in the values of the release; None: there is none.
    """
    address = ((entry or {}).get("tunnel") or {}).get("address")
    return {**data, **({tunnel.ADDRESS: address} if address else {})}


def chosen(options: argparse.Namespace, former: Mapping[str, str], *, cluster_id: str) -> Tunnel | None:
    """Return the tunnel that a ``join`` uses: that of its flags, otherwise that of an earlier one; None: none.

    Args:
        options: the parsed command line.
        former: result of ``known``.
        cluster_id: identity of the upper cluster.

    Raises:
        ConfigError: there is no address.
    """
    if options.via == DIRECT or not (options.via or former):
        return None
    address = options.tunnel_address or former.get(tunnel.ADDRESS, "")
    if not address:
        raise ConfigError(
            "--tunnel-address: HOST:PORT at which the lower cluster reaches the proxy server: required the first time"
        )
    images = options.tunnel_images or former.get(tunnel.IMAGES_KEY) or tunnel.IMAGES
    return Tunnel(
        options.name, cluster_id, options.namespace, options.account_namespace, address, images=images
    )


def way(options: argparse.Namespace, data: Mapping[str, str]) -> lower_account.Proxy | None:
    """Return the way through a tunnel, given the data of its Secret; None: there is none.

    Raises:
        ConfigError: the data is not complete.
    """
    if not data:
        return None
    url = tunnel.proxy_url(options.name, options.namespace)
    try:
        return lower_account.Proxy(url, tunnel.SERVER, data["ca.crt"], data["client.crt"], data["client.key"])
    except KeyError as error:
        place = f"{options.namespace}/{tunnel.upper_name(options.name)}"
        raise ConfigError(
            f"Secret {place} has no {error}: '{program.name('lower-cluster')} join' writes it"
        ) from None


async def ensure(
    options: argparse.Namespace, upper: Client, lower: Client, made: Tunnel, former: Mapping[str, str]
) -> lower_account.Proxy | None:
    """Create or update the certificates and the agent, and return the way through the tunnel.

    Args:
        options: the parsed command line. A dry run changes nothing.
        upper: client of the upper cluster.
        lower: client of the lower cluster.
        made: the tunnel.
        former: result of ``known``.

    Raises:
        ConfigError: an object is not ours.
    """
    is_current = _is_current(made, former)
    data = former if is_current else tunnel.certificates(made)
    if options.dry_run:
        say(_STEP, f"would run the agent {made.lower_namespace}/{made.lower_name} in the lower cluster")
        return way(options, data)
    await applied.apply(
        upper, resources.SECRETS, tunnel.upper_secret(made, data), step=_STEP, by="join", where="upper"
    )
    if not is_current:
        await _restart(upper, made, tunnel.digest(data))
    for body in tunnel.lower_objects(made, data):
        await applied.apply(lower, _KINDS[body["kind"]], body, step=_STEP, by="join", where="lower")
    return way(options, data)


def _is_current(made: Tunnel, former: Mapping[str, str]) -> bool:
    """Report whether certificates are for this tunnel and do not expire soon."""
    server = former.get("server.crt", "").encode()
    if tunnel.FILES - former.keys() or not covers(server, tunnel.hosts(made)):
        return False
    return share_left(server, datetime.now(UTC)) > _RENEW_SHARE


async def _restart(upper: Client, made: Tunnel, digest: str) -> None:
    """Replace the proxy server's pod, if there is one, so that it reads new certificates."""
    if await find(upper, resources.DEPLOYMENTS, made.name, namespace=made.namespace) is None:
        return
    annotations = {tunnel.ANNOTATION_CERTIFICATES: digest}
    patch = {"spec": {"template": {"metadata": {"annotations": annotations}}}}
    await upper.patch(resources.DEPLOYMENTS, made.name, patch, namespace=made.namespace)
    say(_STEP, f"the proxy server {made.namespace}/{made.name} restarts with new certificates")


async def connected(lower: Client, made: Tunnel, seconds: float) -> None:
    """Wait until the agent's Deployment has a ready pod, which is ready while it is connected.

    Raises:
        ConfigError: it is not connected in time.
    """

    async def is_connected() -> bool:
        agent = await find(lower, resources.DEPLOYMENTS, made.lower_name, namespace=made.lower_namespace)
        return _is_available(agent)

    if not await waiting.until(is_connected, seconds=seconds):
        raise ConfigError(
            f"the agent is not connected after {seconds:.0f} s. In the lower cluster: 'kubectl --namespace "
            f"{made.lower_namespace} logs deployment/{made.lower_name}'. It must reach {made.address}, which leads to "
            f"Service {made.namespace}/{made.name}-agents of the upper cluster, and 'kubectl --namespace "
            f"{made.namespace} get pods --selector app.kubernetes.io/component=tunnel' there must be Ready. Then run "
            "the command again."
        )
    say(_STEP, f"the agent is connected to {made.address}")


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
                    f"a pod runs, but its log or an exec does not work: {str(error) or 'no answer in time'}; find the broken "
                    f"link with '{program.name('doctor')}', then join again"
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
        ("Host", dialing.authority(config.host, config.port)),
        *(await config.headers()).items(),
        ("Connection", "Upgrade"),
        ("Upgrade", "websocket"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", base64.b64encode(secrets.token_bytes(16)).decode()),
        ("Sec-WebSocket-Protocol", "v5.channel.k8s.io"),
    )
    target = f"{config.path_prefix.rstrip('/')}{path}?command=/pause&command=-v&stdout=true"
    connection = await dialing.connect(config)
    head, rest = await dialing.ask_head(connection.transport, RequestHead("GET", target, headers).encode())
    connection.transport.abort()
    if head.status != 101:
        raise ValueError(
            f"exec was answered {head.status} {head.reason} {rest[:200].decode(errors='replace')}"
        )


async def remove(
    options: argparse.Namespace, upper: Client, lower: Client | None, *, cluster_id: str
) -> None:
    """Delete the objects that ``ensure`` created; without ``lower`` only those in the upper cluster."""
    dry = options.dry_run
    if lower is not None:
        below, space = tunnel.lower_name(cluster_id, options.name), options.account_namespace
        await applied.remove(lower, list(_KINDS.values()), below, namespace=space, step=_STEP, dry=dry)
    name, space = tunnel.upper_name(options.name), options.namespace
    await applied.remove(upper, [resources.SECRETS], name, namespace=space, step=_STEP, dry=dry)

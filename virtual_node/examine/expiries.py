"""Reads when credentials in kubeconfigs and certificates of servers expire."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import ssl
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from clusterset.model.token_life import claims_of, token_life
from controller_runtime.auth import kubeconfig_file
from controller_runtime.auth.kubeconfig import ConnectionConfig
from controller_runtime.client import dialing
from virtual_node.examine.expiry import LEGACY_TOKEN, Expiry, certificate
from virtual_node.examine.finding import UPPER

_POD_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")
_TIMEOUT = 5.0


def of_webhooks(cluster: str, configuration: Mapping[str, Any]) -> list[Expiry]:
    """Return the expiry of the CA of each webhook of a cluster's configuration; a bundle expires with its last certificate."""
    found = []
    for webhook in configuration.get("webhooks") or ():
        try:
            bundle = x509.load_pem_x509_certificates(
                base64.b64decode(webhook["clientConfig"].get("caBundle") or "")
            )
        except ValueError:
            continue  # There is no readable CA. ``doctor`` reports an invalid caBundle of our webhook.
        last = max(bundle, key=lambda one: one.not_valid_after_utc)
        name = f"{configuration['metadata']['name']}/{webhook['name']}"
        found.append(_of_certificate(cluster, "WebhookCA", name, last, renewed=True))
    return found


def of_kubeconfig(cluster: str, path: str, *, context: str, in_cluster: bool) -> list[Expiry]:
    """Return the expiries of the client certificate and the token of a kubeconfig's user.

    Credentials of plugins are left out, because they are renewed for every run.

    Args:
        cluster: the cluster's name in the report.
        path: the kubeconfig, or several; empty: found as ``kubeconfig.load`` finds it.
        context: the kubeconfig's context; empty: the current one.
        in_cluster: whether to read the pod's own token if there is no kubeconfig.

    Raises:
        ConfigError: the kubeconfig cannot be used.
    """
    found = kubeconfig_file.read(kubeconfig_file.places(path), context=context)
    if found is None:
        return _token_in(cluster, _POD_TOKEN) if in_cluster and _POD_TOKEN.exists() else []
    user, where = found.user, f"{found.source.removeprefix('kubeconfig ')}, context {found.name}"
    expiries: list[Expiry] = []
    material = user.material("client-certificate")
    pem = _read(material) if isinstance(material, Path) else material
    with contextlib.suppress(ValueError):
        if pem:
            client, is_file = x509.load_pem_x509_certificate(pem), isinstance(material, Path)
            expiries.append(_of_certificate(cluster, "ClientCertificate", where, client, renewed=is_file))
    token_file = user.path("tokenFile")
    if token_file is not None:
        expiries += _token_in(cluster, token_file)
    elif token := token_expiry(cluster, user.text("token"), where=where):
        expiries.append(token)
    elif (life := token_life(user.text("token"))) is not None and life.ends is None:
        expiries.append(Expiry(cluster, LEGACY_TOKEN, where, ends=datetime.max.replace(tzinfo=UTC)))
    return expiries


def token_expiry(cluster: str, token: str, *, where: str, renewed: bool = False) -> Expiry | None:
    """Return the expiry of a JWT; None: the token is no JWT, or never expires."""
    try:
        claims = claims_of(token)
        ends = _moment(claims.get("exp"))
        starts = _moment(claims.get("iat") or claims.get("nbf"))
    except (binascii.Error, ValueError, AttributeError, OverflowError, OSError):
        return None
    return Expiry(cluster, "Token", where, ends=ends, starts=starts, renewed=renewed) if ends else None


async def of_apiserver(cluster: str, config: ConnectionConfig) -> Expiry | None:
    """Return the expiry of an API server's certificate; None: not readable (plain http, no answer)."""
    return None if config.ssl is None else await _served(cluster, config.server, config)


async def of_kubelet(node: Mapping[str, Any]) -> Expiry | None:
    """Return the expiry of the certificate of a virtual node's kubelet API; None: the API does not answer us."""
    status = node.get("status") or {}
    addresses = {address["type"]: address["address"] for address in status.get("addresses") or ()}
    port = ((status.get("daemonEndpoints") or {}).get("kubeletEndpoint") or {}).get("Port")
    host = addresses.get("InternalIP")
    if not host or not port:
        return None
    name = f"kubelet API of {node['metadata']['name']}"
    return await _served(UPPER, name, ConnectionConfig(f"https://{dialing.authority(host, int(port))}"))


async def _served(cluster: str, name: str, config: ConnectionConfig) -> Expiry | None:
    # The certificate is only read here; the clients of the server verify it.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        async with asyncio.timeout(_TIMEOUT):
            connection = await dialing.connect(config, context=context)
    except (OSError, TimeoutError, ValueError):
        return None
    try:
        der = connection.transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        connection.transport.abort()
    found = certificate(der)
    return None if found is None else _of_certificate(cluster, "ServingCertificate", name, found)


def _of_certificate(
    cluster: str, kind: str, name: str, certificate: x509.Certificate, *, renewed: bool = False
) -> Expiry:
    ends, starts = certificate.not_valid_after_utc, certificate.not_valid_before_utc
    return Expiry(cluster, kind, name, ends=ends, starts=starts, renewed=renewed)


def _token_in(cluster: str, path: Path) -> list[Expiry]:
    token = (_read(path) or b"").decode("utf-8", "replace").strip()
    found = token_expiry(cluster, token, where=str(path), renewed=True)
    return [found] if found else []


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None  # the client that uses the file reports the error


def _moment(seconds: Any) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, int | float) else None

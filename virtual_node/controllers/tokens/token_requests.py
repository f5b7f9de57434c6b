"""Requests tokens from the upper cluster (TokenRequest), bound to an upper pod or to a virtual node."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from virtual_node.translate.pods import token_secrets
from virtual_node.translate.pods.token_secrets import TokenSecret

MINIMUM_PAUSE = 10.0
"""Minimum seconds between two renewals."""
_REFRESH_AT = 0.8
"""Fraction of a token's lifetime after which it is renewed, as in the kubelet."""
_REFRESH_AFTER = 24 * 3600.0
"""Seconds after which a token is renewed in any case, as in the kubelet."""


async def filled(
    client: Client,
    secret: TokenSecret,
    pod: Object,
    *,
    account: str,
    labels: Mapping[str, str],
    namespace: str,
) -> tuple[dict[str, Any], datetime]:
    """Return the lower Secret with new tokens, and their earliest expiry.

    Args:
        client: of the upper cluster.
        secret: what to request and what to bind it to; at least one token.
        pod: an upper pod that uses the tokens.
        account: its ServiceAccount.
        labels: ownership labels of the Secret.
        namespace: the lower namespace.

    Raises:
        ApiError: the upper cluster refuses or does not answer.
    """
    tokens: dict[str, str] = {}
    expiries: list[datetime] = []
    bound_to = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    if secret.node:
        bound_to = {"apiVersion": "v1", "kind": "Node", "name": secret.node}
    for request in secret.requests:
        body: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {
                "audiences": [request.audience] if request.audience else [],
                "expirationSeconds": request.expiration_seconds,
                "boundObjectRef": bound_to,
            },
        }
        answer = await client.create(
            resources.SERVICE_ACCOUNTS, body, namespace=pod.namespace, name=account, subresource="token"
        )
        tokens[request.key] = answer["status"]["token"]
        expiries.append(timestamps.parse(answer["status"]["expirationTimestamp"]))
    first = min(expiries)
    content = token_secrets.body(
        secret, tokens, labels=labels, namespace=namespace, expires=timestamps.rfc3339(first)
    )
    return content, first


def pause_until_renewal(expires: datetime, now: datetime) -> float:
    """Return the seconds after which to renew a token that was issued at ``now``."""
    remaining = (expires - now).total_seconds()
    return max(MINIMUM_PAUSE, min(remaining * _REFRESH_AT, _REFRESH_AFTER))

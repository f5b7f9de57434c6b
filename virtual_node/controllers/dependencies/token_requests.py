"""Requests a pod's tokens, bound to the upper pod, from the upper cluster (TokenRequest)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import timestamps
from controller_runtime.client.client import Client
from controller_runtime.objects import Object
from virtual_node.translate.pods.service_account import TokenRequestSpec


async def request_tokens(
    client: Client, pod: Object, account: str, requests: Iterable[TokenRequestSpec]
) -> tuple[dict[str, str], datetime]:
    """Return the tokens by their keys in the Secret, and the earliest expiry.

    Args:
        client: of the upper cluster.
        pod: the upper pod.
        account: its ServiceAccount.
        requests: at least one.

    Raises:
        ApiError: the upper cluster refuses or does not answer.
    """
    tokens: dict[str, str] = {}
    expiries: list[datetime] = []
    bound_to = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
    for request in requests:
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
    return tokens, min(expiries)

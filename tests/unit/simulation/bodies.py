"""Small questions to objects as the API server gives them."""

from __future__ import annotations

from tests.fakes.apiserver.storage import Body

TOKEN: Body = {
    "name": "kube-api-access-x",
    "projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca", "path": "ca"}]}},
    ]},
}  # fmt: skip
"""The volume with a token that API servers add to pods."""


def key_of(body: Body) -> str:
    """``namespace/name``, or the name."""
    namespace = body["metadata"].get("namespace")
    return f"{namespace}/{body['metadata']['name']}" if namespace else str(body["metadata"]["name"])


def uid_of(body: Body) -> str:
    return str(body["metadata"]["uid"])


def labels_of(body: Body) -> dict[str, str]:
    return body["metadata"].get("labels") or {}


def is_ending(body: Body) -> bool:
    return "deletionTimestamp" in body["metadata"]

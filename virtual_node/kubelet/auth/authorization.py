"""May they: every request is one question about the ``nodes`` resource, put to the upper cluster.

As the kubelet's delegated authorization, with the finer subresources of KEP-2862 first and ``proxy`` as
the fall-back, and one thing stricter: exec, attach, port-forward and run need ``create`` even when a
WebSocket makes them a GET. A kubelet asks ``get`` there, which hands a shell to whoever may read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controller_runtime.client.client import Client
from controller_runtime.resources import SUBJECT_ACCESS_REVIEWS
from virtual_node.kubelet.auth.authentication import UserInfo
from virtual_node.kubelet.auth.review_cache import ReviewCache

_VERBS = {
    "GET": "get",
    "HEAD": "get",
    "POST": "create",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_SUBRESOURCES = {
    "stats": ("stats",),
    "metrics": ("metrics",),
    "logs": ("log",),
    "checkpoint": ("checkpoint",),
    "pods": ("pods", "proxy"),
    "runningpods": ("pods", "proxy"),
    "healthz": ("healthz", "proxy"),
    "configz": ("configz", "proxy"),
    "statusz": ("statusz",),
    "flagz": ("configz",),
}
_EXECUTING = frozenset({"exec", "attach", "portForward", "run"})


@dataclass(frozen=True, slots=True)
class Attributes:
    """What is asked: a verb on ``nodes/{subresource}`` of the virtual node."""

    verb: str
    subresource: str


class Authorizer:
    """Asks the upper cluster by SubjectAccessReview and remembers what it said.

    Args:
        client: Client of the upper cluster.
        node_name: Name of the virtual node.
        allow_ttl: Seconds a yes counts without asking again.
        deny_ttl: Seconds a no counts without asking again.
    """

    def __init__(
        self, client: Client, *, node_name: str, allow_ttl: float = 300.0, deny_ttl: float = 30.0
    ) -> None:
        self._client = client
        self._node_name = node_name
        self._decisions: ReviewCache[tuple[UserInfo, Attributes], bool] = ReviewCache(
            lambda allowed: allow_ttl if allowed else deny_ttl
        )

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        """Tell whether the user may.

        Raises:
            ApiError: Nobody could tell.
        """
        return await self._decisions.get((user, attributes), lambda: self._review(user, attributes))

    async def close(self) -> None:
        """Drop the reviews under way."""
        await self._decisions.close()

    async def _review(self, user: UserInfo, attributes: Attributes) -> bool:
        body = subject_access_review(user, attributes, node_name=self._node_name)
        review = await self._client.create(SUBJECT_ACCESS_REVIEWS, body)
        return (review.get("status") or {}).get("allowed") is True


def subject_access_review(user: UserInfo, attributes: Attributes, *, node_name: str) -> dict[str, Any]:
    """Write the question down."""
    return {
        "apiVersion": SUBJECT_ACCESS_REVIEWS.api_version,
        "kind": SUBJECT_ACCESS_REVIEWS.kind,
        "spec": {
            "user": user.name,
            "uid": user.uid,
            "groups": list(user.groups),
            "extra": {key: list(values) for key, values in user.extra},
            "resourceAttributes": {
                "verb": attributes.verb,
                "version": "v1",
                "resource": "nodes",
                "subresource": attributes.subresource,
                "name": node_name,
            },
        },
    }


def request_attributes(method: str, path: str) -> list[Attributes]:
    """Tell what a request needs: any one of the returned is enough; the narrowest comes first.

    Args:
        method: The request's method.
        path: The pattern of the route that will serve it, or the path when none will. Never the path
            alone: a spelling that the router and this function read differently would open a door.
    """
    root = path.lstrip("/").split("/", 1)[0]
    verb = "create" if root in _EXECUTING else _VERBS.get(method, method.lower())
    return [Attributes(verb, subresource) for subresource in _SUBRESOURCES.get(root, ("proxy",))]

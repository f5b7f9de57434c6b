"""Authorization of kubelet API requests by SubjectAccessReview on the ``nodes`` resource of the upper cluster.

As in the kubelet's delegated authorization, the fine-grained subresources of KEP-2862 are checked first and
``proxy`` last. One check is stricter: exec, attach, port-forward and run need ``create`` even if they arrive
as GET, which WebSocket requires. For a GET, a kubelet checks ``get``, which would give a shell to every user
with read access.
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
    """The access to check: a verb on ``nodes/{subresource}`` of the virtual node."""

    verb: str
    subresource: str


_ALLOWED_TTL, _DENIED_TTL = 300.0, 30.0
"""Seconds for which a decision is cached."""


class Authorizer:
    """Checks access by SubjectAccessReview in the upper cluster and caches the decisions.

    Args:
        client: Client of the upper cluster.
        node_name: Name of the virtual node.
    """

    def __init__(self, client: Client, *, node_name: str) -> None:
        self._client = client
        self._node_name = node_name
        self._decisions: ReviewCache[tuple[UserInfo, Attributes], bool] = ReviewCache(
            lambda allowed: _ALLOWED_TTL if allowed else _DENIED_TTL
        )

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        """Report whether the user has this access.

        Raises:
            ApiError: The review failed.
        """
        return await self._decisions.get((user, attributes), lambda: self._review(user, attributes))

    async def close(self) -> None:
        """Cancel the reviews in progress."""
        await self._decisions.close()

    async def _review(self, user: UserInfo, attributes: Attributes) -> bool:
        body = subject_access_review(user, attributes, node_name=self._node_name)
        review = await self._client.create(SUBJECT_ACCESS_REVIEWS, body)
        return (review.get("status") or {}).get("allowed") is True


def subject_access_review(user: UserInfo, attributes: Attributes, *, node_name: str) -> dict[str, Any]:
    """Return the SubjectAccessReview for a user and an access to the node."""
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
    """Return the accesses of which any one allows a request, the most specific first.

    Args:
        method: The request's method.
        path: The pattern of the route that serves the request, or its path if no route does. Never pass the
            path of a request with a route: if the router and this function read it differently, authorization
            would be bypassed.
    """
    root = path.lstrip("/").split("/", 1)[0]
    verb = "create" if root in _EXECUTING else _VERBS.get(method, method.lower())
    return [Attributes(verb, subresource) for subresource in _SUBRESOURCES.get(root, ("proxy",))]

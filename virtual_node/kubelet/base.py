"""The interface that the kubelet API needs from its virtual node, and the errors with which it answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError

TEXT = "text/plain; version=0.0.4; charset=utf-8"
"""Content type of metrics."""


@dataclass(frozen=True, slots=True)
class PodTarget:
    """The lower pod of an upper pod.

    Attributes:
        cluster: Name of the lower cluster, for messages and logs.
        namespace: Namespace of the lower pod.
        name: Name of the lower pod.
        client: Client of the lower cluster.
        pod: The upper pod, as a plain dict; read only.
        containers: Names of the containers that requests may name.
    """

    cluster: str
    namespace: str
    name: str
    client: Client
    pod: Mapping[str, Any]
    containers: frozenset[str]


class Backend(Protocol):
    """The virtual node as its kubelet API uses it. Results come from caches, so no method blocks."""

    def resolve(self, namespace: str, name: str, *, uid: str | None = None) -> PodTarget | None:
        """Return the lower pod of an upper pod that is bound to this node.

        Args:
            namespace: Namespace of the upper pod.
            name: Name of the upper pod.
            uid: UID that the pod must have; None: any.

        Returns:
            The target, or None if this node has no such pod.

        Raises:
            Refusal: The upper pod has no lower pod, or the lower pod of that name is unmanaged.
        """

    def pods(self) -> Iterable[Mapping[str, Any]]:
        """Return the upper pods bound to this node, as plain dicts (a generator may decode them lazily)."""

    def running_pods(self) -> Iterable[Mapping[str, Any]]:
        """Return the upper pods of this node whose lower pods run, as plain dicts."""


class Refusal(Exception):  # noqa: N818 - a response to a client, not an error of this program
    """A request that gets an error response.

    Attributes:
        status: HTTP status code.
        text: The body as plain text. The upper apiserver passes it to the user.
    """

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def quoted(text: str) -> str:
    """Quote a name from a request as Go's ``%q`` does, so that it cannot contain a line break."""
    return json.dumps(text)


def unreachable(cluster: str, error: Exception) -> Refusal:
    """Return the error response for a lower cluster that cannot be reached, with the cause."""
    why = error.message if isinstance(error, ApiError) else str(error) or type(error).__name__
    return Refusal(500, f"cluster {quoted(cluster)} cannot be reached: {why}")


def refusal_from_lower(error: ApiError, *, cluster: str) -> Refusal:
    """Return the error response for an error of the lower API server, so that its text reaches the user.

    The upper API server passes on a kubelet's text only with 400, 403 and 500. For other codes it uses a
    generic text (apimachinery, ``NewGenericServerResponse``). Other client errors except 429 therefore become
    400, which a kubelet also sends after it has found the pod. A lower 401 concerns the virtual node's
    credentials, not the user's. It becomes 500, because kubectl would otherwise ask the user to log in.
    """
    if error.code == 401:
        return Refusal(
            500, f"cluster {quoted(cluster)} does not accept the virtual node's credentials: {error.message}"
        )
    if error.code in {400, 403, 429}:
        return Refusal(error.code, error.message)
    if 400 <= error.code < 500:
        return Refusal(400, error.message)
    if error.code == 0:
        return unreachable(cluster, error)
    return Refusal(500, error.message)

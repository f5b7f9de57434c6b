"""Authentication and authorization of kubelet API requests by certificate, TokenReview and SubjectAccessReview.

As in the kubelet's delegated authentication (``apiserver/pkg/authentication/authenticatorfactory``), a
verified client certificate is checked first, then a bearer token in the header or, from browsers, in the list
of WebSocket protocols. An invalid token is refused even if anonymous requests are allowed.

Users are authorized on the ``nodes`` resource of the upper cluster. As in the kubelet's delegated authorization, the
fine-grained subresources of KEP-2862 are checked first and ``proxy`` last. One check is stricter: exec, attach,
port-forward and run need ``create`` even if they arrive as GET, which WebSocket requires. For a GET, a kubelet checks
``get``, which would give a shell to every user with read access.
"""

from __future__ import annotations

import asyncio
import binascii
import hashlib
import hmac
import secrets
import ssl
import time
from base64 import urlsafe_b64decode
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from aiohttp import web

from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError, NotFound, ServerTimeout, TooManyRequests, Unavailable
from controller_runtime.resources import CONFIG_MAPS, SUBJECT_ACCESS_REVIEWS, TOKEN_REVIEWS
from controller_runtime.tls.reloader import common_name
from controller_runtime.util.buffers import Recent
from controller_runtime.util.keyed import SharedAnswers

AUTHENTICATED = "system:authenticated"
BEARER_PROTOCOL = "base64url.bearer.authorization.k8s.io."
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
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
_TIMEOUT = 10.0
"""Seconds that a review may take."""


@dataclass(frozen=True, slots=True)
class UserInfo:
    """A user of the upper cluster. It is hashable, so that it can be part of a key of cached decisions."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


_VALID_TTL = 120.0
"""Seconds for which a valid token is cached."""
_INVALID_TTL = 2.0
"""Seconds for which an invalid token is cached. Short, because a new token may arrive here before the API server
knows it."""
ANONYMOUS = UserInfo("system:anonymous", groups=("system:unauthenticated",))


class AuthenticationError(Exception):
    """The credentials are invalid; the response is a 401."""


class Authenticator:
    """Authenticates requests by client certificate or bearer token.

    Args:
        client: Client of the upper cluster, for TokenReviews; None: only certificates are accepted.
        anonymous_auth: Whether requests without credentials are accepted as ``system:anonymous``.
    """

    def __init__(self, client: Client | None, *, anonymous_auth: bool = False) -> None:
        self._client = client
        self._anonymous = anonymous_auth
        self._secret = secrets.token_bytes(32)
        self._tokens: ReviewCache[bytes, UserInfo | None] = ReviewCache(
            lambda user: _INVALID_TTL if user is None else _VALID_TTL
        )

    async def authenticate(self, request: web.BaseRequest) -> UserInfo | None:
        """Return the user that sent the request; None: the request has no credentials.

        Raises:
            AuthenticationError: The credentials are invalid.
            ApiError: The credentials could not be checked.
        """
        transport = request.transport
        certificate = (transport.get_extra_info("peercert") if transport is not None else None) or {}
        # The certificate was verified when the connection was made, which may be long ago.
        has_expired = bool(certificate) and time.time() > ssl.cert_time_to_seconds(certificate["notAfter"])
        user = None if has_expired else user_from_certificate(certificate)
        if user is None:
            token = bearer_token(request)
            if token is not None:
                return await self._review(token)
        if has_expired:
            raise AuthenticationError("the client certificate has expired")
        if user is None and self._anonymous:
            return ANONYMOUS
        return user

    async def close(self) -> None:
        """Cancel the TokenReviews in progress."""
        await self._tokens.close()

    async def _review(self, token: str) -> UserInfo:
        client = self._client
        if client is None:
            raise AuthenticationError("bearer tokens are not accepted")
        # Only the token's digest is kept in memory, not the token itself.
        key = hmac.digest(self._secret, token.encode(), hashlib.sha256)
        user = await self._tokens.get(key, lambda: review_token(client, token))
        if user is None:
            raise AuthenticationError("invalid bearer token")
        return user


def bearer_token(request: web.BaseRequest) -> str | None:
    """Return the bearer token in a request's header or WebSocket protocols; None: there is none.

    Raises:
        AuthenticationError: The token is malformed.
    """
    scheme, _, token = request.headers.get("Authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer" and token.split():
        if not token.isascii():
            raise AuthenticationError("a bearer token has other characters than ASCII")
        return token.split()[0]
    if request.headers.get("Upgrade", "").lower() != "websocket":
        return None
    try:
        return websocket_bearer_token(request.headers.getall("Sec-WebSocket-Protocol", []))
    except ValueError as error:
        raise AuthenticationError(str(error)) from error


def user_from_certificate(certificate: Mapping[str, Any]) -> UserInfo | None:
    """Return the user in a verified client certificate: its common name, with organisations as groups; None: none.

    Args:
        certificate: The result of `ssl.SSLSocket.getpeercert`; empty: no certificate.
    """
    common = common_name(certificate)
    if not common:
        return None
    names = [pair for relative in certificate.get("subject", ()) for pair in relative]
    return UserInfo(common, groups=_with_authenticated(v for key, v in names if key == "organizationName"))


async def review_token(client: Client, token: str) -> UserInfo | None:
    """Return the user of a token by TokenReview in the upper cluster; None: the token is invalid.

    Raises:
        ApiError: The review failed.
    """
    body = {"apiVersion": TOKEN_REVIEWS.api_version, "kind": TOKEN_REVIEWS.kind, "spec": {"token": token}}
    try:
        status = msgspec.convert(await client.create(TOKEN_REVIEWS, body), _TokenReview).status
    except msgspec.ValidationError as error:
        raise Unavailable(f"TokenReview: the answer is malformed: {error}") from None
    user = status.user if status is not None and status.authenticated else None
    if user is None or not user.username:
        return None
    extra = tuple(sorted((key, tuple(values)) for key, values in (user.extra or {}).items()))
    return UserInfo(user.username, user.uid, _with_authenticated(user.groups or ()), extra)


class _User(msgspec.Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenReviewStatus(msgspec.Struct):
    authenticated: bool = False
    user: _User | None = None


class _TokenReview(msgspec.Struct):
    status: _TokenReviewStatus | None = None


def _with_authenticated(groups: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*groups, AUTHENTICATED)))


async def load_client_ca(client: Client) -> bytes:
    """Read the CA that signs the upper cluster's client certificates, as extension apiservers do.

    Returns:
        One or more PEM certificates.

    Raises:
        ApiError: The CA cannot be read, or the cluster does not publish one (`NotFound`).
    """
    name = "extension-apiserver-authentication"
    config_map = await client.get(CONFIG_MAPS, name, namespace="kube-system")
    pem = str((config_map.get("data") or {}).get("client-ca-file", ""))
    if "BEGIN CERTIFICATE" not in pem:
        message = f"configmap kube-system/{name} has no certificate under client-ca-file"
        raise NotFound(message, code=404, reason="NotFound")
    return pem.encode()


def websocket_protocols(value: str) -> list[str]:
    """Split a ``Sec-WebSocket-Protocol`` header into protocols."""
    return [protocol for part in value.split(",") if (protocol := part.strip())]


def websocket_bearer_token(values: Sequence[str]) -> str | None:
    """Return the bearer token that a browser sent as a WebSocket protocol.

    Args:
        values: The request's ``Sec-WebSocket-Protocol`` headers.

    Returns:
        The token, or None if there is none.

    Raises:
        ValueError: There is more than one token, the token is the only protocol, or it is not UTF-8 text in
            base64url without padding.
    """
    protocols = [protocol for value in values for protocol in websocket_protocols(value)]
    tokens = [p.removeprefix(BEARER_PROTOCOL) for p in protocols if p.startswith(BEARER_PROTOCOL)]
    if not tokens:
        return None
    if len(tokens) > 1:
        raise ValueError("multiple base64.bearer.authorization tokens specified")
    if len(protocols) == 1:
        raise ValueError("missing additional subprotocol")
    encoded = tokens[0]
    if "=" in encoded:
        raise ValueError("invalid base64.bearer.authorization token encoding")
    try:
        token = urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise ValueError("invalid base64.bearer.authorization token encoding") from error
    return token or None


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


class ReviewCache(Generic[K, V]):
    """Results of TokenReviews or SubjectAccessReviews by key.

    Args:
        ttl: Returns the seconds for which a result is valid; 0: it is not cached.
        stale: Seconds for which an expired result is still used if the upper API server does not answer. So
            during an outage, logs and metrics stay readable for users who had access.
        size: Maximum number of cached results; the least recently used is dropped first.
    """

    def __init__(self, ttl: Callable[[V], float], *, stale: float = 600.0, size: int = 4096) -> None:
        self._ttl = ttl
        self._stale = stale
        self._entries: Recent[K, tuple[V, float]] = Recent(size)
        """Value and loop time of its expiry."""
        self._asking: SharedAnswers[K, V] = SharedAnswers(fresh=0)

    async def get(self, key: K, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        """Return the cached result or request a review; cancelling one caller does not affect the others.

        Args:
            key: The key of the result.
            ask: Requests the review.

        Raises:
            ApiError: The review failed, and no cached result may be used.
        """
        now = asyncio.get_running_loop().time()
        if known := self._entries.touch(key):
            value, expires = known
            if now < expires:
                return value
        try:
            return await self._asking.get(key, lambda: self._ask(key, ask))
        except (Unavailable, TooManyRequests, TimeoutError) as error:
            if known and now < expires + self._stale:
                return value
            if isinstance(error, ApiError):
                raise
            raise ServerTimeout("no answer in time", code=504, reason="Timeout") from error

    async def _ask(self, key: K, ask: Callable[[], Coroutine[Any, Any, V]]) -> V:
        async with asyncio.timeout(_TIMEOUT):
            value = await ask()
        ttl = self._ttl(value)
        if ttl > 0:
            self._entries[key] = value, asyncio.get_running_loop().time() + ttl
        else:
            self._entries.pop(key, None)
        return value

    async def close(self) -> None:
        """Cancel the reviews in progress."""
        await self._asking.close()

"""Authentication of kubelet API requests by client certificate or by a bearer token that TokenReview checks.

As in the kubelet's delegated authentication (``apiserver/pkg/authentication/authenticatorfactory``), a
verified client certificate is checked first, then a bearer token in the header or, from browsers, in the list
of WebSocket protocols. An invalid token is refused even if anonymous requests are allowed.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import ssl
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from aiohttp import web

from controller_runtime.client.client import Client
from controller_runtime.errors import NotFound, Unavailable
from controller_runtime.resources import CONFIG_MAPS, TOKEN_REVIEWS
from controller_runtime.tls.reloader import common_name
from virtual_node.kubelet.auth.review_cache import ReviewCache
from virtual_node.kubelet.auth.websocket_token import websocket_bearer_token

AUTHENTICATED = "system:authenticated"


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

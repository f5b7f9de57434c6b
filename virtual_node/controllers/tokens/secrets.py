"""The lower Secrets with tokens: requested, written and deleted, and which pods share one.

A Secret's name is derived from names that users choose, so another Secret may have it. Only a Secret that carries our
label and the expected id is patched or deleted, and each write has the uid of the checked Secret as a precondition.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from clusterset.model.token_life import bound_to
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find_object
from controller_runtime.errors import NotFound
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import create_new, delete_exactly, patch_only
from virtual_node.translate.base.ownership import is_owned
from virtual_node.translate.pods import token_secrets
from virtual_node.translate.pods.token_secrets import TokenSecret, account_of, fingerprint, is_token_secret_of

MINIMUM_PAUSE = 10.0
"""Minimum seconds between two renewals."""
_REFRESH_AT = 0.8
"""Fraction of a token's lifetime after which it is renewed, as in the kubelet."""
_REFRESH_AFTER = 24 * 3600.0
"""Seconds after which a token is renewed in any case, as in the kubelet."""
_CACHE_BEHIND = 10.0
"""Seconds for which a Secret that was written counts as existing before the cache shows it."""
Where = tuple[str, str]
"""Lower namespace and name of a Secret."""


class TokenStore:
    """The token Secrets of one lower cluster. ``of`` is always the Secret's id (``TokenSecret.id``)."""

    def __init__(self, context: ClusterContext, secrets: Informer) -> None:
        self._context = context
        self._secrets = secrets
        self._contents: dict[str, array[int]] = {}
        """By id: fingerprints of the Secrets as we wrote or found them."""

    def note(self, of: str, secret: dict[str, Any]) -> None:
        """Remember the content of a Secret."""
        self._contents[of] = fingerprint(secret)

    def forget(self, of: str) -> None:
        """Forget the content of a Secret."""
        self._contents.pop(of, None)

    def lacks_content(self, of: str, secret: Object) -> bool:
        """Report whether a part of the content that was written or found is no longer in the Secret."""
        return not set(self._contents.get(of, ())) <= set(fingerprint(secret.to_dict()))

    def cached(self, where: Where) -> Object | None:
        """Return the Secret as the cache shows it; None: it is not cached, or not ours."""
        return self._secrets.store.get("/".join(where))

    def is_of(self, secret: Object, of: str) -> bool:
        """Report whether a lower Secret is ours and holds the tokens of that id."""
        is_ours = is_owned(secret.labels, self._context.cluster_id)
        return is_ours and is_token_secret_of(secret.name, secret.labels, of)

    async def is_taken(self, of: str, where: Where) -> bool:
        """Report whether an unmanaged Secret has the name. Reads live."""
        there = await find_object(self._context.lower, resources.SECRETS, where[1], namespace=where[0])
        return there is not None and not self.is_of(there, of)

    async def write(self, of: str, secret: dict[str, Any]) -> bool:
        """Create the Secret or patch the existing one; return False if an unmanaged Secret has the name."""
        lower, metadata = self._context.lower, secret["metadata"]
        self.note(of, secret)  # first, because the response to the write may be lost
        if (written := await create_new(lower, resources.SECRETS, secret)) is not None:
            if not self.is_of(written, of):
                return False
            changed = {field: metadata[field] for field in ("labels", "annotations")}
            await patch_only(lower, resources.SECRETS, written, {"data": secret["data"], "metadata": changed})
        return True

    async def remove(self, of: str, where: Where) -> None:
        """Delete the Secret of that id; leave any other Secret of that name.

        Raises:
            Conflict: the checked Secret is gone, and a new one may have its name; the caller retries.
        """
        namespace, name = where
        lower = self._context.lower
        # A Secret that is not in the cache is too new, gone, or no longer ours.
        secret = self.cached(where) or await find_object(lower, resources.SECRETS, name, namespace=namespace)
        if secret is None:
            return
        if not self.is_of(secret, of):
            self._context.log.warning("a lower Secret is not owned; it is not changed", secret=secret.key)
            return
        with contextlib.suppress(NotFound):
            await delete_exactly(lower, resources.SECRETS, secret)


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


@dataclass(slots=True)
class SharedSecret:
    """A lower Secret with a token that pods of a virtual node share."""

    node: str
    account: str
    """Upper ``namespace/name`` of the ServiceAccount."""
    users: dict[str, None] = field(default_factory=dict)
    """Uids of the upper pods."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the Secret is written or deleted, so that pods that start together cause one token."""
    written_at: float = -_CACHE_BEHIND

    def is_new(self) -> bool:
        """Report whether the Secret was written so recently that the cache may not show it yet."""
        return asyncio.get_running_loop().time() - self.written_at < _CACHE_BEHIND

    def wrote(self) -> None:
        """Record a write."""
        self.written_at = asyncio.get_running_loop().time()

    def deleted(self) -> None:
        """Record that the cache has shown the deletion."""
        self.written_at = -_CACHE_BEHIND


@dataclass(eq=False, repr=False)
class SharedTokens:
    """The shared Secrets of one lower cluster, by id (``TokenSecret.id``)."""

    accounts: Informer | None
    """Upper ServiceAccounts; None: their recreation is not noticed."""
    node_uid: Callable[[str], str]
    """Returns the uid of a virtual node's Node; empty: unknown."""
    wake: Callable[[str], None]
    """Called with the id of a Secret when its ServiceAccount has changed."""
    _secrets: dict[str, SharedSecret] = field(default_factory=dict)
    _bound: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Uids of the Node and the ServiceAccount that a token is bound to, by the Secret's id."""
    _uses: dict[str, list[str]] = field(default_factory=dict)
    """Ids of the Secrets of a pod, by upper uid."""

    def __post_init__(self) -> None:
        """Register a handler for the ServiceAccounts."""
        if self.accounts is not None:
            self.accounts.add_handler(
                on_add=lambda account, _initial: self._account_changed(account),
                on_update=lambda _old, new: self._account_changed(new),
            )

    def get(self, of: str) -> SharedSecret | None:
        """Return the Secret of that id; None: it is not shared, or was deleted."""
        return self._secrets.get(of)

    def use(self, secret: TokenSecret, upper_pod: Mapping[str, Any]) -> None:
        """Record that a pod uses a Secret, if it is shared."""
        if not secret.node:
            return
        metadata = upper_pod["metadata"]
        account = f"{metadata['namespace']}/{account_of(upper_pod)}"
        users = self._secrets.setdefault(secret.id, SharedSecret(secret.node, account)).users
        if metadata["uid"] not in users:
            users[metadata["uid"]] = None
            self._uses.setdefault(metadata["uid"], []).append(secret.id)

    def release(self, uid: str) -> list[str]:
        """Record that a pod is gone; return the ids of Secrets that no pod uses any more."""
        unused = []
        for of in self._uses.pop(uid, ()):
            users = self._secrets[of].users
            users.pop(uid, None)
            if not users:
                unused.append(of)
        return unused

    def forget(self, of: str) -> None:
        """Remove a Secret that was deleted."""
        self._secrets.pop(of, None)
        self._bound.pop(of, None)

    def holds(self, of: str, secret: Mapping[str, Any]) -> None:
        """Record the uids that the token in a Secret is bound to."""
        with contextlib.suppress(ValueError, StopIteration):
            self._bound[of] = bound_to(base64.b64decode(next(iter(secret["data"].values()))).decode())

    def is_valid(self, of: str) -> bool:
        """Report whether the token's Node and ServiceAccount still exist, as far as is known."""
        secret = self._secrets.get(of)
        if secret is None:
            return True
        node, account = self._bound.get(of, ("", ""))
        there = self.accounts.store.get(secret.account) if self.accounts is not None else None
        return _is_same(node, self.node_uid(secret.node)) and _is_same(account, there.uid if there else "")

    def _account_changed(self, account: Object) -> None:
        for of, secret in self._secrets.items():
            if secret.account == account.key:
                self.wake(of)


def _is_same(uid: str, now: str) -> bool:
    return not uid or not now or uid == now

"""Which pods use which shared token Secret, and whether a shared token is still valid. No requests."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterset.model.token_life import bound_to
from controller_runtime.cache.informer import Informer
from controller_runtime.objects import Object
from virtual_node.translate.pods.token_secrets import TokenSecret, account_of

_CACHE_BEHIND = 10.0
"""Seconds for which a Secret that was written counts as existing before the cache shows it."""


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

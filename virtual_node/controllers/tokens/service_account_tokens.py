"""Upper ServiceAccount tokens for lower pods, renewed before they expire.

A pod's ServiceAccount is only valid in the upper cluster. So the upper cluster issues the token
(TokenRequest). We store it in a lower Secret, which the rewritten token volume of the lower pod projects. The
lower kubelet updates the mounted file when the Secret changes, as it would for a token of its own cluster.

A pod has a Secret of its own, or pods share Secrets (``translate/pods/token_secrets.py``). A Secret's id is the
pod's uid, or a hash if it is shared. Pods that started before a change of ``identities.tokens`` keep their
Secrets. Several processes may share a lower cluster. Each keeps the Secrets of its own nodes' pods.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod.conditions import is_finished
from controller_runtime.apimachinery import timestamps
from controller_runtime.errors import ApiError, is_retryable
from controller_runtime.objects import Object
from controller_runtime.workqueue.controller import Controller, Result
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.problems import Problem, no_token, token_secret_taken
from virtual_node.controllers.tokens.secrets import (
    MINIMUM_PAUSE,
    SharedSecret,
    SharedTokens,
    TokenStore,
    Where,
    filled,
    pause_until_renewal,
)
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.base.ownership import ownership_labels
from virtual_node.translate.pods import token_secrets
from virtual_node.translate.pods.token_secrets import TokenSecret

_WORKERS = 4
_RECHECK = 60.0
"""Seconds until a Secret is checked again if no event may follow: it is shared, and its Node may be recreated; it was
found at start, and its pod may be gone; its name belongs to an unmanaged Secret; or its last pod is gone."""


@dataclass(eq=False, repr=False)
class IdentityController:
    """Keeps the token Secrets of our pods."""

    context: ClusterContext
    caches: ClusterCaches
    node_uid: Callable[[str], str]
    """Returns the uid of a virtual node's Node; empty: unknown."""
    # All of the following are by TokenSecret.id.
    _named: dict[str, Where] = field(default_factory=dict)
    _due: dict[str, float] = field(default_factory=dict)
    """Loop time at which a Secret's tokens must be renewed."""
    _found_for: set[str] = field(default_factory=set)
    """Secrets of an earlier process, until the cache shows their pod or ``forget_pod`` is called."""
    _foreign: set[str] = field(default_factory=set)
    """Secrets that cannot be written, because an unmanaged Secret has the name."""

    def __post_init__(self) -> None:
        """Register handlers for the lower Secrets and the ServiceAccounts."""
        self._store = TokenStore(self.context, self.caches.secrets)
        self.controller: Controller[str] = self.context.controller(
            "identities",
            self.reconcile,
            workers=_WORKERS,
            first_delay=1.0,
            flow=lambda of: self._named.get(of, ("",))[0],
        )
        self._shared = SharedTokens(
            self.caches.accounts, node_uid=self.node_uid, wake=self.controller.queue.add
        )
        self.caches.secrets.add_handler(on_add=self._found, on_update=self._changed, on_delete=self._gone)

    async def ensure(self, upper: Object, upper_pod: dict[str, Any], options: PodOptions) -> list[Problem]:
        """Ensure that the Secrets with the pod's tokens exist in the lower cluster, if the pod uses tokens.

        An existing Secret that needs no renewal is kept, so a pod that is tried many times (because of a
        quota, for instance) costs one token. Returns a Problem if the upper cluster refuses a token, or an
        unmanaged Secret has the name; that Secret is left alone.

        Raises:
            ApiError: a cluster refuses; the caller retries.
        """
        if not options.service_accounts:
            return []
        found: list[Problem] = []
        for secret in token_secrets.token_secrets(upper_pod, options):
            self._shared.use(secret, upper_pod)
            found += await self._ensure(secret, upper, upper_pod)
        return found

    async def _ensure(self, secret: TokenSecret, upper: Object, upper_pod: dict[str, Any]) -> list[Problem]:
        shared = self._shared.get(secret.id)
        async with contextlib.nullcontext() if shared is None else shared.lock:
            where = self._where(upper_pod, secret)
            return [] if self._is_fresh(secret.id, where) else await self._write(secret, where, upper)

    async def _write(self, secret: TokenSecret, where: Where, upper: Object) -> list[Problem]:
        if secret.id in self._foreign and await self._store.is_taken(secret.id, where):
            # Checked before a token is requested, because it could not be stored.
            return [token_secret_taken(self.context.name, where)]
        self._foreign.discard(secret.id)
        upper_pod = upper.to_dict()
        owner = self._options_of(upper_pod).owner
        try:
            body, first_expiry = await filled(
                self.context.upper,
                secret,
                upper,
                account=token_secrets.account_of(upper_pod),
                labels=ownership_labels(owner, secret.id),
                namespace=where[0],
            )
        except ApiError as error:
            if is_retryable(error):
                raise
            return [no_token(token_secrets.token_volume(upper_pod), error)]
        # Recorded before the write: its response may be lost, and the pod deleted before the next try.
        self._named[secret.id] = where
        if not await self._store.write(secret.id, body):
            self._named.pop(secret.id, None)
            self._foreign.add(secret.id)
            return [token_secret_taken(self.context.name, where)]
        if (shared := self._shared.get(secret.id)) is not None:
            shared.wrote()
            self._shared.holds(secret.id, body)
        self._schedule(secret.id, first_expiry)
        return []

    def adopt(self, upper: Object) -> None:
        """Keep the token Secrets of a lower pod that an earlier process created; recreate a missing Secret."""
        lower = self.caches.pods.lower_of(upper)
        upper_pod = upper.to_dict()
        options = self._options_of(upper_pod)
        if lower is None or not options.service_accounts:
            return
        for secret in token_secrets.mounted_token_secrets(upper_pod, lower.to_dict(), options):
            self._shared.use(secret, upper_pod)
            if secret.id not in self._named:
                self.controller.queue.add(secret.id)

    def forget_pod(self, uid: str) -> None:
        """Requeue the Secret of an upper pod that is gone for deletion, and unused shared Secrets after a delay."""
        self._found_for.discard(uid)
        self._forget(uid)
        if uid in self._named:
            self.controller.queue.add(uid)
        for of in self._shared.release(uid):
            self.controller.queue.add_after(of, _RECHECK)

    async def reconcile(self, of: str) -> Result | None:
        """Renew the tokens of a Secret, or delete it when its pods are gone."""
        shared = self._shared.get(of)
        is_used = False
        for uid in [of] if shared is None else list(shared.users):
            upper = self.caches.pods.upper_pod(uid)
            if upper is None:
                continue
            is_used = True
            self._found_for.discard(of)
            upper_pod = upper.to_dict()
            possible = token_secrets.possible_token_secrets(upper_pod, self._options_of(upper_pod))
            secret = next((one for one in possible if one.id == of), None)
            if secret is None:
                continue
            if not is_finished(upper_pod.get("status")):
                return await self._renew(secret, upper, upper_pod)
            # Finished pods do not read their tokens. Record the Secret, so that it is deleted with the pod
            # even if its labels were changed.
            self._named.setdefault(of, self._where(upper_pod, secret))
        if shared is not None:
            return await self._reconcile_unread(of, shared)
        if is_used or (of in self._found_for and self.caches.pods.lower_pod(of) is not None):
            return None  # the upper cache may be behind; if the pod is gone, ``forget_pod`` follows
        if of in self._found_for and self._adopt_readers(of):
            return Result(requeue_after=_RECHECK)
        await self._remove(of)
        return None

    def _adopt_readers(self, of: str) -> bool:
        """Keep a Secret of an earlier process for the lower pods that mount it; report whether there are any.

        Pods that were not in both caches at start have not been adopted.
        """
        namespace, name = self._named.get(of, ("", ""))
        mounted = token_secrets.mounted_names
        readers = [pod for pod in self.caches.pods.lower_pods_in(namespace) if name in mounted(pod.spec)]
        for pod in readers:
            if (upper := self.caches.pods.upper_pod(pod.labels.get(names.LABEL_UPPER_UID, ""))) is not None:
                self.adopt(upper)
        return bool(readers)

    async def _reconcile_unread(self, of: str, shared: SharedSecret) -> Result | None:
        """Delete a shared Secret, unless finished or terminating pods still mount it."""
        async with shared.lock:
            if shared.users:
                return Result(requeue_after=_RECHECK)
            await self._remove(of)
            self._forget(of)
        return None

    async def _remove(self, of: str) -> None:
        if (where := self._named.get(of)) is not None:
            await self._store.remove(of, where)
            self._named.pop(of, None)
            self._found_for.discard(of)
            self.controller.queue.drop_delayed(of)  # the scheduled renewal, which may be most of an hour away
        self._shared.forget(of)  # also what a Secret that was read at start is bound to

    async def _renew(self, secret: TokenSecret, upper: Object, upper_pod: dict[str, Any]) -> Result | None:
        if self._is_fresh(secret.id, self._where(upper_pod, secret)):
            # Renewed after this reconcile was scheduled. The queue keeps the earlier of two times for one key.
            left = self._due[secret.id] - asyncio.get_running_loop().time()
            return Result(requeue_after=min(left, _RECHECK) if secret.node else left)
        was_foreign = secret.id in self._foreign
        problems = await self._ensure(secret, upper, upper_pod)
        for problem in () if was_foreign else problems:
            self.context.warn(upper, problem.event_reason, problem.message)
        return Result(requeue_after=_RECHECK) if problems else None

    def _forget(self, of: str) -> None:
        self._foreign.discard(of)
        self._due.pop(of, None)
        self._store.forget(of)

    def _found(self, secret: Object, initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        """Register a Secret of an earlier process and when to renew it; skip Secrets that this process wrote."""
        of = token_secrets.token_owner(secret.name, secret.labels)
        if not of or secret.labels.get(names.LABEL_NODE) not in self.context.nodes:
            return
        if not initial and of in self._named:
            return
        found = secret.to_dict()
        self._named[of] = (secret.namespace, secret.name)
        self._store.note(of, found)
        self._found_for.add(of)
        self._shared.holds(of, found)
        try:
            self._schedule(of, timestamps.parse(secret.annotations.get(names.ANNOTATION_TOKEN_EXPIRES, "")))
        except ValueError:
            self.controller.queue.add(of)
        else:
            self.controller.queue.add_after(of, _RECHECK)

    def _changed(self, old: Object, new: Object) -> None:
        """Renew the tokens if the Secret's content was changed, because its pod reads it."""
        of = token_secrets.token_owner(old.name, old.labels)
        if self._named.get(of) != (old.namespace, old.name):
            return
        if self._store.lacks_content(of, new):
            self._due.pop(of, None)
            self.controller.queue.add_after(of, MINIMUM_PAUSE)

    def _gone(self, secret: Object) -> None:
        """Recreate the Secret after its deletion in the lower cluster, because a pod that starts needs it."""
        of = token_secrets.token_owner(secret.name, secret.labels)
        if self._named.get(of) == (secret.namespace, secret.name):
            if (shared := self._shared.get(of)) is not None:
                shared.deleted()
            self.controller.queue.add(of)

    def _options_of(self, upper_pod: dict[str, Any]) -> PodOptions:
        return self.context.options[upper_pod["spec"]["nodeName"]]

    def _where(self, upper_pod: dict[str, Any], secret: TokenSecret) -> Where:
        return self.context.lower_namespace(upper_pod["metadata"]["namespace"]), secret.name

    def _is_fresh(self, of: str, where: Where) -> bool:
        """Report whether the tokens are in the Secret of that namespace and name, and need no renewal yet."""
        if self._named.get(of) != where or self._due.get(of, 0.0) <= asyncio.get_running_loop().time():
            return False
        if (secret := self._store.cached(where)) is None:
            return (shared := self._shared.get(of)) is not None and shared.is_new()
        return self._store.is_of(secret, of) and self._shared.is_valid(of)

    def _schedule(self, of: str, expires: datetime) -> None:
        pause = pause_until_renewal(expires, datetime.now(UTC))
        self._due[of] = asyncio.get_running_loop().time() + pause
        self.controller.queue.add_after(of, pause if self._shared.get(of) is None else min(pause, _RECHECK))

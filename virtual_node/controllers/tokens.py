"""Upper ServiceAccount tokens for lower pods, renewed before they expire.

A pod's ServiceAccount is only valid in the upper cluster. So the upper cluster issues the token
(TokenRequest). We store it in a lower Secret, which the rewritten token volume of the lower pod projects. The
lower kubelet updates the mounted file when the Secret changes, as it would for a token of its own cluster.

A pod has a Secret of its own, or pods share Secrets (``translate/pods/service_account.py``). A Secret's id is the
pod's uid, or a hash if it is shared. Pods that started before a change of ``identities.tokens`` keep their
Secrets. Several processes may share a lower cluster. Each keeps the Secrets of its own nodes' pods.

A Secret's name is derived from names that users choose, so another Secret may have it. Only a Secret that carries our
label and the expected id is patched or deleted, and each write has the uid of the checked Secret as a precondition.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from array import array
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from clusterset.model import names
from clusterset.model.pod import api_access
from clusterset.model.pod.conditions import is_finished
from clusterset.model.token_life import bound_to
from controller_runtime import resources
from controller_runtime.apimachinery import timestamps
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client, find_object
from controller_runtime.errors import ApiError, NotFound, is_retryable
from controller_runtime.objects import Object
from controller_runtime.workqueue.controller import Controller, Result
from virtual_node.controllers.base.caches import ClusterCaches
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import create_new, delete_exactly, patch_only
from virtual_node.controllers.base.problems import Problem, no_token, token_secret_taken
from virtual_node.translate.base.ownership import is_owned, ownership_labels
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import service_account
from virtual_node.translate.pods.service_account import (
    TokenSecret,
    account_of,
    fingerprint,
    is_token_secret_of,
)

_WORKERS = 4
_RECHECK = 60.0
"""Seconds until a Secret is checked again if no event may follow: it is shared, and its Node may be recreated; it was
found at start, and its pod may be gone; its name belongs to an unmanaged Secret; or its last pod is gone."""
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
        for secret in service_account.token_secrets(upper_pod, options):
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
                account=service_account.account_of(upper_pod),
                labels=ownership_labels(owner, secret.id),
                namespace=where[0],
            )
        except ApiError as error:
            if is_retryable(error):
                raise
            return [no_token(service_account.token_volume(upper_pod), error)]
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

    def adopt(self, upper_pod: Mapping[str, Any], mounted: Collection[str]) -> None:
        """Keep the token Secrets of a lower pod that an earlier process created; recreate a missing Secret.

        Args:
            upper_pod: its upper pod.
            mounted: names of the Secrets that the projected volumes of the lower pod contain.
        """
        options = self._options_of(upper_pod)
        if not options.service_accounts:
            return
        for secret in service_account.mounted_token_secrets(upper_pod, mounted, options):
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
            possible = service_account.possible_token_secrets(upper_pod, self._options_of(upper_pod))
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
        pods = self.caches.pods
        mounted = (
            (pod, service_account.mounted_names(pod.spec or {})) for pod in pods.lower_pods_in(namespace)
        )
        readers = [(pod, secrets) for pod, secrets in mounted if name in secrets]
        for pod, secrets in readers:
            if (upper := pods.upper_of(pod)) is not None:
                self.adopt(upper.to_dict(), secrets)
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
        of = service_account.token_owner(secret.name, secret.labels)
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
        of = service_account.token_owner(old.name, old.labels)
        if self._named.get(of) != (old.namespace, old.name):
            return
        if self._store.lacks_content(of, new):
            self._due.pop(of, None)
            self.controller.queue.add_after(of, MINIMUM_PAUSE)

    def _gone(self, secret: Object) -> None:
        """Recreate the Secret after its deletion in the lower cluster, because a pod that starts needs it."""
        of = service_account.token_owner(secret.name, secret.labels)
        if self._named.get(of) == (secret.namespace, secret.name):
            if (shared := self._shared.get(of)) is not None:
                shared.deleted()
            self.controller.queue.add(of)

    def _options_of(self, upper_pod: Mapping[str, Any]) -> PodOptions:
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


class TokenStore:
    """The Secrets with tokens, or those with certificates, of one lower cluster.

    ``of`` is always the Secret's id: ``TokenSecret.id``, or the uid of the upper pod with the certificates.
    """

    def __init__(
        self,
        context: ClusterContext,
        secrets: Informer,
        *,
        is_named: Callable[[str, Mapping[str, str], str], bool] = is_token_secret_of,
    ) -> None:
        self._context = context
        self._secrets = secrets
        self._is_named = is_named
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
        """Report whether a lower Secret is ours and has the content of that id."""
        is_ours = is_owned(secret.labels, self._context.cluster_id)
        return is_ours and self._is_named(secret.name, secret.labels, of)

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
    content = service_account.body(
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
        """Record the uids that a shared token in a Secret is bound to."""
        if not api_access.is_shared(of):
            return
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

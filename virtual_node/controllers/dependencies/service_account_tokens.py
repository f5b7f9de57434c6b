"""Upper ServiceAccount tokens for lower pods, bound to the upper pod and renewed before they expire.

A pod's ServiceAccount is only valid in the upper cluster. So the upper cluster issues the token
(TokenRequest), bound to the upper pod, so that it becomes invalid with the pod. We store it in a lower
Secret, which the rewritten token volume of the lower pod projects. The lower kubelet updates the mounted file
when the Secret changes, as it would for a token of its own cluster.

Several virtual-node processes may share a lower cluster. Each process keeps the Secrets of its own nodes'
pods.

The Secret's name is derived from the pod's name, so another Secret may have it. Only a Secret that carries
our label and this pod's uid is patched or deleted, and each write has the uid of the checked Secret as a
precondition.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names, timestamps
from controller_runtime.api.pod.conditions import is_finished
from controller_runtime.cache.informer import Informer
from controller_runtime.client.reads import find
from controller_runtime.errors import AlreadyExists, ApiError, NotFound, is_retryable
from controller_runtime.objects import Object, from_dict
from controller_runtime.util.backoff import ExponentialBackoff
from controller_runtime.workqueue.controller import Controller, Result
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.controllers.base.problems import Problem, no_token
from virtual_node.controllers.dependencies.token_requests import request_tokens
from virtual_node.translate.base.options import PodOptions
from virtual_node.translate.base.ownership import is_owned, ownership_labels
from virtual_node.translate.pods import service_account

_WORKERS = 4
_REFRESH_AT = 0.8
"""Fraction of a token's lifetime after which it is renewed, as in the kubelet."""
_REFRESH_AFTER = 24 * 3600.0
"""Seconds after which a token is renewed in any case, as in the kubelet."""
_MINIMUM_PAUSE = 10.0
_SETTLED = 60.0
"""Seconds until a Secret found at start is checked, because its pod may have been deleted while no process ran."""
_FOREIGN_AGAIN = 60.0
"""Seconds between two tries while the Secret name is taken, because the deletion of an unmanaged Secret
causes no event here."""


class IdentityController:
    """Keeps the token Secrets of our pods."""

    def __init__(
        self,
        context: ClusterContext,
        *,
        secrets: Informer,
        find_upper: Callable[[str], Object | None],
        find_lower: Callable[[str], Object | None],
    ) -> None:
        """Register handlers for the lower Secrets.

        Args:
            context: the two clusters.
            secrets: lower Secrets that carry our ownership label.
            find_upper: returns the upper pod of a uid, or None.
            find_lower: returns the lower pod made for the upper pod of a uid, or None.
        """
        self._context = context
        self._secrets = secrets
        self._find_upper = find_upper
        self._find_lower = find_lower
        self._named: dict[str, tuple[str, str]] = {}
        self._due: dict[str, float] = {}
        """Loop time at which a pod's tokens must be renewed, by upper uid."""
        self._contents: dict[str, frozenset[int]] = {}
        """Fingerprints of the Secrets as we wrote or found them, by upper uid."""
        self._found_for: set[str] = set()
        """Upper uids of pods that are known only from their Secrets, because the cache has not shown the pods
        and they were not released."""
        self._foreign: set[str] = set()
        """Upper uids of pods whose Secret name is taken by an unmanaged Secret."""
        self.controller: Controller[str] = Controller(
            f"identities-{context.name}",
            self.reconcile,
            workers=_WORKERS,
            backoff=ExponentialBackoff(1.0, 60.0),
            flow=lambda uid: self._named.get(uid, ("",))[0],
        )
        secrets.add_handler(on_add=self._found, on_update=self._changed, on_delete=self._gone)

    async def run(self) -> None:
        """Renew and remove tokens until cancelled."""
        await self.controller.run()

    async def ensure(self, upper: Object, upper_pod: dict[str, Any], options: PodOptions) -> list[Problem]:
        """Ensure that the pod's token Secret exists in the lower cluster, if the pod uses tokens.

        An existing Secret that needs no renewal is kept, so a pod that is tried many times (because of a
        quota, for instance) costs one token. Returns a Problem if the upper cluster refuses a token, or an
        unmanaged Secret has the name; that Secret is left alone.

        Raises:
            ApiError: a cluster refuses; the caller retries.
        """
        requests = service_account.token_requests(upper_pod) if options.service_accounts else []
        if not requests:
            return []
        where = self._where(upper_pod)
        if self._is_fresh(upper.uid, where):
            return []
        if upper.uid in self._foreign and await self._is_taken(upper.uid, where):
            # Checked before a token is requested, because it could not be stored.
            return [self._taken(where)]
        self._foreign.discard(upper.uid)
        try:
            account = upper_pod["spec"].get("serviceAccountName") or "default"
            tokens, first_expiry = await request_tokens(self._context.upper, upper, account, requests)
        except ApiError as error:
            if is_retryable(error):
                raise
            return [no_token(service_account.token_volume(upper_pod), error)]
        secret = service_account.token_secret(
            upper_pod, tokens, labels=ownership_labels(options.owner, upper.uid), namespace=where[0]
        )
        annotations = secret["metadata"].setdefault("annotations", {})
        annotations[names.ANNOTATION_TOKEN_EXPIRES] = timestamps.rfc3339(first_expiry)
        # Recorded before the write, because the response may be lost, and the pod deleted before the next
        # try.
        self._named[upper.uid] = where
        self._contents[upper.uid] = service_account.fingerprint(secret)
        if not await self._write(upper.uid, secret):
            self._named.pop(upper.uid, None)
            self._foreign.add(upper.uid)
            return [self._taken(where)]
        self._schedule(upper.uid, first_expiry)
        return []

    async def _write(self, uid: str, secret: dict[str, Any]) -> bool:
        """Create the Secret or patch the existing one; return False if the existing one is not this pod's."""
        lower, metadata = self._context.lower, secret["metadata"]
        try:
            await lower.create(resources.SECRETS, secret, namespace=metadata["namespace"])
        except AlreadyExists:
            written = from_dict(
                await lower.get(resources.SECRETS, metadata["name"], namespace=metadata["namespace"])
            )
            if not self._is_of(written, uid):
                return False
            await patch_only(
                lower,
                resources.SECRETS,
                written.name,
                {
                    "data": secret["data"],
                    "metadata": {field: metadata[field] for field in ("labels", "annotations")},
                },
                uid=written.uid,
                namespace=written.namespace,
            )
        return True

    def _is_of(self, secret: Object, uid: str) -> bool:
        """Report whether a lower Secret is ours and holds only the tokens of that pod."""
        is_ours = is_owned(secret.labels, self._context.cluster_id)
        return is_ours and service_account.is_token_secret_of(secret.name, secret.labels, uid)

    async def _is_taken(self, uid: str, where: tuple[str, str]) -> bool:
        there = await find(self._context.lower, resources.SECRETS, where[1], namespace=where[0])
        if there is None:
            return False
        return not self._is_of(from_dict(there), uid)

    def _taken(self, where: tuple[str, str]) -> Problem:
        text = (
            f"Lower cluster {self._context.name} has a Secret {'/'.join(where)} that is not ours, where this pod's "
            "tokens belong; it is left alone. Delete or rename it"
        )
        return Problem("DependencyConflict", text, "DependencyConflict", text)

    def adopt(self, uid: str) -> None:
        """Requeue a pod that an earlier process created, unless its Secret is known; recreate a missing Secret."""
        if uid not in self._named:
            self.controller.queue.add(uid)

    def forget_pod(self, uid: str) -> None:
        """Requeue an upper pod that is gone, so that its Secret is deleted; its tokens are already invalid."""
        self._foreign.discard(uid)
        self._found_for.discard(uid)
        self._due.pop(uid, None)
        self._contents.pop(uid, None)
        if uid in self._named:
            self.controller.queue.add(uid)

    async def reconcile(self, uid: str) -> Result | None:
        """Renew a pod's tokens, or delete their Secret when the pod is gone."""
        upper = self._find_upper(uid)
        if upper is not None:
            self._found_for.discard(uid)
            return await self._refresh(upper)
        if uid in self._found_for and self._find_lower(uid) is not None:
            return None  # the upper cache may be behind; if the pod is gone, ``forget_pod`` follows
        where = self._named.get(uid)
        if where is not None:
            # A Conflict means that the checked Secret is gone, and a new one may have its name. So retry.
            await self._remove(uid, *where)
            self._named.pop(uid, None)
            self._found_for.discard(uid)
        return None

    async def _refresh(self, upper: Object) -> Result | None:
        upper_pod = upper.to_dict()
        if is_finished(upper_pod.get("status")):
            # Finished pods do not read their tokens. Record the Secret, so that it is deleted with the pod
            # even if its labels were changed.
            if service_account.token_requests(upper_pod):
                self._named.setdefault(upper.uid, self._where(upper_pod))
            return None
        if self._is_fresh(upper.uid, self._where(upper_pod)):
            # Renewed after this reconcile was scheduled. The queue keeps the earlier of two times for one
            # key.
            return Result(requeue_after=self._due[upper.uid] - asyncio.get_running_loop().time())
        was_foreign = upper.uid in self._foreign
        problems = await self.ensure(upper, upper_pod, self._context.options[upper_pod["spec"]["nodeName"]])
        for problem in problems:
            if not was_foreign:
                self._context.recorder.event(upper, "Warning", problem.event_reason, problem.message)
        return Result(requeue_after=_FOREIGN_AGAIN) if problems else None

    async def _remove(self, uid: str, namespace: str, name: str) -> None:
        """Delete the token Secret of that pod; leave any other Secret of that name."""
        secret = self._secrets.store.get(f"{namespace}/{name}")
        try:
            if secret is None:
                # Not in the cache: too new, gone, or no longer ours.
                found = await self._context.lower.get(resources.SECRETS, name, namespace=namespace)
                secret = from_dict(found)
            if not self._is_of(secret, uid):
                self._context.log.warning("a lower Secret is not owned; it is not changed", secret=secret.key)
                return
            await self._context.lower.delete(resources.SECRETS, name, namespace=namespace, uid=secret.uid)
        except NotFound:
            return

    def _found(self, secret: Object, initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        """Register a Secret of an earlier process and when to renew it; skip Secrets that this process wrote."""
        uid = service_account.token_owner(secret.name, secret.labels)
        if not uid or secret.labels.get(names.LABEL_NODE) not in self._context.nodes:
            return
        if not initial and uid in self._named:
            return
        self._named[uid] = (secret.namespace, secret.name)
        self._contents[uid] = service_account.fingerprint(secret.to_dict())
        self._found_for.add(uid)
        try:
            self._schedule(uid, timestamps.parse(secret.annotations.get(names.ANNOTATION_TOKEN_EXPIRES, "")))
        except ValueError:
            self.controller.queue.add(uid)
        else:
            self.controller.queue.add_after(uid, _SETTLED)

    def _changed(self, old: Object, new: Object) -> None:
        """Renew the tokens if the Secret's content was changed, because its pod reads it."""
        uid = service_account.token_owner(old.name, old.labels)
        if self._named.get(uid) != (old.namespace, old.name):
            return
        if not self._contents.get(uid, frozenset()) <= service_account.fingerprint(new.to_dict()):
            self._due.pop(uid, None)
            self.controller.queue.add_after(uid, _MINIMUM_PAUSE)

    def _gone(self, secret: Object) -> None:
        """Recreate the Secret after its deletion in the lower cluster, because a pod that starts needs it."""
        uid = service_account.token_owner(secret.name, secret.labels)
        if self._named.get(uid) == (secret.namespace, secret.name):
            self.controller.queue.add(uid)

    def _where(self, upper_pod: dict[str, Any]) -> tuple[str, str]:
        namespace = self._context.lower_namespace(upper_pod["metadata"]["namespace"])
        return namespace, service_account.token_secret_name(upper_pod)

    def _is_fresh(self, uid: str, where: tuple[str, str]) -> bool:
        """Report whether a pod's tokens are in the Secret of that namespace and name, and need no renewal yet."""
        if self._named.get(uid) != where or self._due.get(uid, 0.0) <= asyncio.get_running_loop().time():
            return False
        secret = self._secrets.store.get("/".join(where))
        return secret is not None and self._is_of(secret, uid)

    def _schedule(self, uid: str, expires: datetime) -> None:
        remaining = (expires - datetime.now(UTC)).total_seconds()
        pause = max(_MINIMUM_PAUSE, min(remaining * _REFRESH_AT, _REFRESH_AFTER))
        self._due[uid] = asyncio.get_running_loop().time() + pause
        self.controller.queue.add_after(uid, pause)

"""Tokens of the upper cluster for pods below, bound to the upper pod and refreshed before they expire.

A pod's ServiceAccount means something in the upper cluster only. So the token comes from there (TokenRequest,
bound to the upper pod: it dies with it), and reaches the lower pod as a Secret of ours that the rewritten
token volume projects. The kubelet below updates the mounted file when the Secret changes, just as it would
refresh a token of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from controller_runtime import resources
from controller_runtime.api import names, timestamps
from controller_runtime.backoff import ExponentialBackoff
from controller_runtime.controller import Controller, Result
from controller_runtime.errors import AlreadyExists, Conflict, NotFound
from controller_runtime.informer import Informer
from controller_runtime.objects import Object
from controller_runtime.work_queue import WorkQueue
from virtual_node.controllers.context import ClusterContext
from virtual_node.translate import service_account
from virtual_node.translate.ownership import ownership_labels
from virtual_node.translate.pod_down import PodOptions

_REFRESH_AT = 0.8
"""Share of a token's life after which it is renewed, as the kubelet does."""
_MINIMUM_PAUSE = 10.0


class IdentityController:
    """Keeps the token Secrets of our pods."""

    def __init__(
        self, context: ClusterContext, *, secrets: Informer, find_upper: Callable[[str], Object | None]
    ) -> None:
        """Set up.

        Args:
            context: the two clusters.
            secrets: lower Secrets that carry our ownership label.
            find_upper: the upper pod of a uid, or None.
        """
        self._context = context
        self._secrets = secrets
        self._find_upper = find_upper
        self._named: dict[str, tuple[str, str]] = {}
        queue: WorkQueue[str] = WorkQueue(
            f"identities-{context.name}", rate_limiter=ExponentialBackoff(1.0, 60.0)
        )
        self.controller: Controller[str] = Controller(
            f"identities-{context.name}", self.reconcile, workers=4, queue=queue
        )
        secrets.add_handler(on_add=self._found)

    async def run(self) -> None:
        """Refresh and remove tokens until cancelled."""
        await self.controller.run()

    async def ensure(self, upper: Object, upper_pod: dict[str, Any], options: PodOptions) -> None:
        """Have the pod's token Secret there below, when the pod wants tokens.

        Raises:
            ApiError: a cluster refuses; the caller retries.
        """
        if not options.service_accounts:
            return
        requests = service_account.token_requests(upper_pod)
        if not requests:
            return
        tokens: dict[str, str] = {}
        first_expiry: datetime | None = None
        account = upper_pod["spec"].get("serviceAccountName") or "default"
        for request in requests:
            body = {
                "apiVersion": "authentication.k8s.io/v1",
                "kind": "TokenRequest",
                "spec": {
                    "audiences": [request.audience] if request.audience else [],
                    "expirationSeconds": request.expiration_seconds,
                    "boundObjectRef": {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "name": upper.name,
                        "uid": upper.uid,
                    },
                },
            }
            answer = await self._context.upper.create(
                resources.SERVICE_ACCOUNTS,
                body,
                namespace=upper.namespace,
                name=account,
                subresource="token",
            )
            tokens[request.key] = answer["status"]["token"]
            expiry = timestamps.parse(answer["status"]["expirationTimestamp"])
            first_expiry = expiry if first_expiry is None else min(first_expiry, expiry)
        assert first_expiry is not None
        secret = service_account.token_secret(
            upper_pod,
            tokens,
            labels=ownership_labels(options.owner, upper.uid),
            namespace=options.namespace_map(upper.namespace),
        )
        secret["metadata"].setdefault("annotations", {})[names.ANNOTATION_TOKEN_EXPIRES] = timestamps.rfc3339(
            first_expiry
        )
        namespace, name = secret["metadata"]["namespace"], secret["metadata"]["name"]
        try:
            await self._context.lower.create(resources.SECRETS, secret, namespace=namespace)
        except AlreadyExists:
            await self._context.lower.patch(
                resources.SECRETS,
                name,
                {"data": secret.get("data"), "metadata": {"annotations": secret["metadata"]["annotations"]}},
                namespace=namespace,
            )
        self._named[upper.uid] = (namespace, name)
        self._schedule(upper.uid, first_expiry)

    def release(self, uid: str) -> None:
        """The upper pod is gone: its tokens are worthless, its Secret goes."""
        if uid in self._named:
            self.controller.queue.add(uid)

    async def reconcile(self, uid: str) -> Result | None:
        """Refresh a pod's tokens, or remove them when the pod is gone."""
        upper = self._find_upper(uid)
        if upper is not None:
            upper_pod = upper.to_dict()
            await self.ensure(upper, upper_pod, self._context.options[upper_pod["spec"]["nodeName"]])
            return None
        where = self._named.pop(uid, None)
        if where is None:
            return None
        namespace, name = where
        with contextlib.suppress(NotFound, Conflict):
            await self._context.lower.delete(resources.SECRETS, name, namespace=namespace)
        return None

    def _found(self, secret: Object, initial: bool) -> None:  # noqa: FBT001 - the informer's signature
        """After a restart: know our token Secrets again, and when each has to be renewed."""
        uid = secret.labels.get(names.LABEL_TOKEN_OF)
        if not uid or not initial:
            return
        self._named[uid] = (secret.namespace, secret.name)
        expires = secret.annotations.get(names.ANNOTATION_TOKEN_EXPIRES)
        if expires:
            self._schedule(uid, timestamps.parse(expires))
        else:
            self.controller.queue.add(uid)

    def _schedule(self, uid: str, expires: datetime) -> None:
        remaining = (expires - datetime.now(UTC)).total_seconds()
        self.controller.queue.add_after(uid, max(_MINIMUM_PAUSE, remaining * _REFRESH_AT))

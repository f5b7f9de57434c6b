"""Renews the tokens by which our programs authenticate to a lower cluster, before they expire.

``virtual-node lower-cluster register`` writes a token with a limited lifetime into a Secret of the upper
cluster, beside a kubeconfig that references the token as a file. This controller requests the next token in
the lower cluster, with a right limited to these accounts, and writes it into the Secret. All programs that
mount the Secret read the file again, without a restart.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from clusterset.config import TokenSecret
from clusterset.model.token_life import TokenLife, token_life
from controller_runtime import resources
from controller_runtime.auth.credentials import token_problem
from controller_runtime.errors import ApiError, ConfigError, NotFound, Unauthorized
from virtual_node import metrics
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import patch_only

FIELD = "token"
"""Key of the Secret's data that holds the token."""
_LOOK = 3600.0
"""Longest pause, in seconds, between two checks of a token that is not due for renewal."""
_RETRY = 60.0
_LONGEST_TOKEN = 16 << 10
"""Maximum characters of a token, which is sent in a header. A token of a ServiceAccount has about a thousand."""


@dataclass(eq=False, repr=False)
class CredentialRenewal:
    """Renews tokens of the lower cluster that are stored in Secrets of the upper cluster."""

    context: ClusterContext
    secrets: list[TokenSecret]
    """The Secrets that hold the tokens."""
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    """Returns the wall-clock time; tests replace it."""

    async def run(self) -> None:
        """Renew until cancelled."""
        async with asyncio.TaskGroup() as group:
            for secret in self.secrets:
                group.create_task(self._follow(secret))

    async def _follow(self, secret: TokenSecret) -> None:
        errors = metrics.TOKEN_RENEWAL_ERRORS.labels(self.context.name, _key(secret))
        while True:
            try:
                pause = await self.renew(secret)
            except (ApiError, ConfigError) as error:
                pause = _RETRY
                errors.inc()
                self.context.log.warning(
                    "token of the lower cluster not renewed",
                    secret=_key(secret),
                    error=str(error),
                    next=register_again(self.context.name, secret.namespace),
                )
            await asyncio.sleep(pause)

    async def renew(self, secret: TokenSecret) -> float:
        """Renew the token in a Secret if it is due; return the seconds until the next check.

        A Secret that does not exist, or has no token with a limited lifetime, is left alone.

        Raises:
            ApiError: a cluster refuses or does not answer.
        """
        upper = self.context.upper
        try:
            found = await upper.get(resources.SECRETS, secret.name, namespace=secret.namespace)
        except NotFound:
            metrics.forget_token(self.context.name, _key(secret))
            return _LOOK
        life = _life(found)
        due = life.renew_at() if life is not None else None
        if life is None or life.ends is None or due is None:
            metrics.forget_token(self.context.name, _key(secret))
            return _LOOK
        metrics.show_token(self.context.name, _key(secret), expiry=life.ends.timestamp(), due=due.timestamp())
        left = (due - self.now()).total_seconds()
        if left > 0:
            return min(left, _LOOK)
        token, ends = await self._request(life, life.ends - life.starts)
        patch = {"data": {FIELD: base64.b64encode(token.encode()).decode()}}
        await patch_only(upper, resources.SECRETS, found, patch)
        self.context.log.info("token of the lower cluster renewed", secret=_key(secret), expires=ends)
        return _RETRY

    async def _request(self, life: TokenLife, duration: timedelta) -> tuple[str, str]:
        """Request a new token of the same account; return the token and its expiry (RFC 3339).

        Raises:
            ApiError: the lower cluster refuses, or answers with something else. It is not stored, because all programs
                read the Secret.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"audiences": [], "expirationSeconds": max(600, int(duration.total_seconds()))},
        }
        answer = await self.context.lower.create(
            resources.SERVICE_ACCOUNTS,
            body,
            namespace=life.namespace,
            name=life.account,
            subresource="token",
        )
        status = answer.get("status")
        token = status.get("token") if isinstance(status, dict) else None
        if not isinstance(token, str) or len(token) > _LONGEST_TOKEN or token_problem(token):
            raise ApiError("the lower cluster answered without a token")
        new = token_life(token)
        if (
            new is None
            or (new.namespace, new.account) != (life.namespace, life.account)
            or not new.renew_at()
        ):
            raise ApiError(
                f"the lower cluster did not answer with a token of {life.namespace}/{life.account} that expires"
            )
        return token, str(new.ends)


async def kube_system(context: ClusterContext) -> dict[str, Any]:
    """Return the lower cluster's namespace kube-system; this is the first request with our credentials for it.

    Raises:
        ConfigError: the credentials are not accepted; the message has the command that creates new ones.
        ApiError: another error, or no answer.
    """
    try:
        return await context.lower.get(resources.NAMESPACES, "kube-system")
    except Unauthorized as error:
        secrets = context.config.token_secrets
        command = register_again(context.name, secrets[0].namespace if secrets else "NAMESPACE")
        raise ConfigError(
            f"lower cluster {context.name} does not accept our credentials ({error}). "
            f"If the token expired while no virtual node ran: {command}"
        ) from None


def register_again(cluster: str, namespace: str = "NAMESPACE") -> str:
    """Return the command that writes a new token for a lower cluster into its Secrets in the upper cluster."""
    return (
        f"virtual-node lower-cluster register {cluster} --client-kubeconfig LOWER_ADMIN.yaml "
        f"--kubeconfig UPPER.yaml --namespace {namespace}"
    )


def _key(secret: TokenSecret) -> str:
    return f"{secret.namespace}/{secret.name}"


def _life(secret: dict[str, Any]) -> TokenLife | None:
    try:
        token = base64.b64decode((secret.get("data") or {}).get(FIELD) or "").decode("ascii")
    except (binascii.Error, ValueError):
        return None
    return token_life(token.strip())

"""Writes and deletes the lower Secrets with tokens; a Secret that is not ours is never changed or deleted.

A Secret's name is derived from names that users choose, so another Secret may have it. Only a Secret that carries our
label and the expected id is patched or deleted, and each write has the uid of the checked Secret as a precondition.
"""

from __future__ import annotations

import contextlib
from array import array
from typing import Any

from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import find_object
from controller_runtime.errors import NotFound
from controller_runtime.objects import Object
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import create_new, patch_only
from virtual_node.translate.base.ownership import is_owned
from virtual_node.translate.pods.token_secrets import fingerprint, is_token_secret_of

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
            await lower.delete(resources.SECRETS, name, namespace=namespace, uid=secret.uid)

"""Keeps the labels of the upper namespaces current, which decide what the affinity terms of lower pods select.

Without the right to read namespaces, terms that name or select namespaces are not predicted.
"""

from __future__ import annotations

from clusterset.model.pod.affinity_terms import UpperNamespaces
from controller_runtime import log, resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import Client
from controller_runtime.errors import ApiError
from controller_runtime.objects import Object


class UpperNamespaceFeed:
    """The informer of the upper namespaces."""

    def __init__(self, client: Client) -> None:
        """Create the informer; ``run`` starts it."""
        self._informer = Informer(
            client, resources.NAMESPACES, transform=_only_metadata, name="upper-namespaces"
        )
        self.namespaces = UpperNamespaces(is_known=lambda: self._informer.has_synced)
        self._informer.on_change(
            lambda namespace: self.namespaces.upsert(namespace.name, namespace.labels),
            lambda namespace: self.namespaces.remove(namespace.name),
        )
        self._is_reported = False
        self._log = log.get_logger(component="fit")

    async def run(self) -> None:
        """Follow the namespaces until cancelled."""
        await self._informer.run()

    async def wait(self, seconds: float) -> None:
        """Wait until the namespaces are read, or cannot be read now, at most this long."""
        if not self.is_settled:
            await self._informer.wait_synced(seconds)

    @property
    def is_settled(self) -> bool:
        """Report whether the namespaces are read or cannot be read now, so that waiting for them is of no use."""
        return self._informer.has_synced or self._informer.last_error is not None

    def look(self) -> None:
        """Log once that the namespaces cannot be read."""
        error = self._informer.last_error
        if (
            isinstance(error, ApiError)
            and error.code
            and not (self._is_reported or self._informer.has_synced)
        ):
            self._is_reported = True
            self._log.warning(
                "namespaces of the upper cluster cannot be read, so affinity terms that name or select namespaces are not "
                "predicted",
                error=str(error),
                next="grant the multi-scheduler's account the verbs list and watch on namespaces",
            )


def _only_metadata(namespace: Object) -> Object:
    return namespace.with_fields(spec={}, status={}).with_only(labels=lambda _key: True)

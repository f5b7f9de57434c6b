"""Lower namespaces: made when a pod first needs one, remembered so that it costs no call afterwards."""

from __future__ import annotations

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.errors import AlreadyExists, NotFound
from virtual_node.controllers.context import ClusterContext


class Namespaces:
    """Sees to it that a namespace exists below before anything is created in it."""

    def __init__(self, context: ClusterContext) -> None:
        self._context = context
        self._known: set[str] = set()

    async def ensure(self, namespace: str) -> None:
        """Create the namespace below unless it is there.

        Namespaces that we create carry the ownership label; those that were there are left as they are.

        Raises:
            ApiError: the lower cluster refuses.
        """
        if namespace in self._known:
            return
        lower = self._context.lower
        try:
            await lower.get(resources.NAMESPACES, namespace)
        except NotFound:
            body = {
                "apiVersion": "v1",
                "kind": "Namespace",
                "metadata": {
                    "name": namespace,
                    "labels": {names.LABEL_UPPER_CLUSTER: self._context.cluster_id},
                },
            }
            try:
                await lower.create(resources.NAMESPACES, body)
                self._context.log.info("namespace created below", namespace=namespace)
            except AlreadyExists:
                pass
        self._known.add(namespace)

    def forget(self, namespace: str) -> None:
        """The lower cluster says that the namespace is gone: look again next time."""
        self._known.discard(namespace)

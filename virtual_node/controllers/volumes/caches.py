"""The informers about claims and volumes of both clusters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from controller_runtime import resources
from controller_runtime.api import names
from controller_runtime.cache.informer import Informer
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.translate.storage.binder_pod import LABEL_BINDER_OF


@dataclass(slots=True)
class VolumeCaches:
    """Claims, volumes and classes as the caches have them."""

    upper_claims: Informer
    lower_claims: Informer
    """Only ours."""
    upper_volumes: Informer
    """Only mirrors."""
    lower_volumes: Informer
    upper_classes: Informer
    binders: Informer
    """Placeholder pods below."""

    def all(self) -> Iterator[Informer]:
        """Every one of them."""
        yield from (
            self.upper_claims,
            self.lower_claims,
            self.upper_volumes,
            self.lower_volumes,
            self.upper_classes,
            self.binders,
        )


def volume_caches(context: ClusterContext) -> VolumeCaches:
    """Make the informers of one lower cluster."""
    ours = f"{names.LABEL_UPPER_CLUSTER}={context.cluster_id}"
    return VolumeCaches(
        upper_claims=Informer(context.upper, resources.PERSISTENT_VOLUME_CLAIMS),
        lower_claims=Informer(context.lower, resources.PERSISTENT_VOLUME_CLAIMS, label_selector=ours),
        upper_volumes=Informer(
            context.upper,
            resources.PERSISTENT_VOLUMES,
            label_selector=f"{names.LABEL_LOWER_CLUSTER}={context.name}",
        ),
        lower_volumes=Informer(context.lower, resources.PERSISTENT_VOLUMES),
        upper_classes=Informer(context.upper, resources.STORAGE_CLASSES),
        binders=Informer(
            context.lower, resources.PODS, label_selector=f"{ours},{LABEL_BINDER_OF}", name="volume-binders"
        ),
    )

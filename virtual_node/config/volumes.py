"""How claims and volumes follow pods to a lower cluster."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta


class _Base(msgspec.Struct, rename="camel", forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    pass


class SecretReference(_Base):
    """A Secret in the lower cluster."""

    name: str
    """Name of the Secret."""
    namespace: str
    """Namespace of the Secret."""


class SharedStorage(_Base):
    """Storage that several lower clusters reach: all clusters with an entry of the same name."""

    name: Annotated[str, Meta(pattern="^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
    """Name of the storage, the same in all clusters. Labels of the virtual nodes contain it."""
    drivers: Annotated[list[str], Meta(min_length=1)]
    """CSI drivers whose volume handles mean the same volume in all of these clusters."""
    secret: SecretReference | None = None
    """Secret in this cluster that the driver gets for volumes of another cluster. Without it, volumes that need a Secret
    stay in their cluster."""


class VolumeConfig(_Base):
    """How PersistentVolumeClaims and volumes are mirrored in this cluster."""

    storage_classes: dict[str, str] = {}
    """Lower StorageClass by upper StorageClass, if their names differ."""
    published: list[str] = []
    """Upper StorageClasses, with provisioner ``kubernetes.io/no-provisioner`` or ``virtual-node.io/…``, of which
    ``Available`` lower volumes appear in the upper cluster, at most 100 per lower cluster. Claims of every upper
    namespace can bind them. Empty: none."""
    deletion_policy: Literal["Delete", "Retain"] = "Delete"
    """What happens to the lower claim when an upper claim is deleted. Delete: it is deleted, and the lower
    volume's reclaim policy decides about the data. Retain: the lower claim stays."""
    orphans: Literal["Keep", "Delete"] = "Keep"
    """What happens to a lower claim whose upper claim disappeared without a regular deletion."""
    allowed_host_paths: list[str] = []
    """Directories of lower nodes that pods may mount, in addition to ``policy.hostPaths``."""
    binder_image: str = "registry.k8s.io/pause:3.10"
    """Image of the placeholder pod for which the lower scheduler selects a node for new volumes."""
    shared: list[SharedStorage] = []
    """Storage that other lower clusters reach, too. Volumes on this storage follow their pods to these clusters."""

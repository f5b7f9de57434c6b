"""Mirrors lower volumes to the upper cluster: those of our claims, and free ones that an upper claim could bind."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names
from controller_runtime import resources
from controller_runtime.cache.informer import Informer
from controller_runtime.client.client import find_object
from controller_runtime.errors import AlreadyExists, ApiError, ConfigError, Forbidden, NotFound
from controller_runtime.objects import Object
from controller_runtime.resources import Resource
from controller_runtime.util.event_loop import Slicer
from controller_runtime.util.rate_limiter import ExponentialBackoff, Pace
from controller_runtime.workqueue.controller import Result
from virtual_node.controllers.base.context import ClusterContext, requeue_on_change
from virtual_node.controllers.base.preconditions import create_new, delete_only, is_virtual_node, patch_only
from virtual_node.controllers.volumes.caches import FREE, INDEX_FREE, VolumeCaches
from virtual_node.translate.base import ownership
from virtual_node.translate.base.fields import is_name
from virtual_node.translate.storage import pv as translate
from virtual_node.translate.storage import shared

_OTHER_PROCESS_RETRY = 30.0
"""Seconds until a retry for a volume whose mirror another process must create; the mirror's event normally
requeues the volume earlier."""
_CREATED_BURST, _CREATED_QPS = 5000, 20.0
"""Mirrors created at once, and per second in the long run: as many as pods in a burst."""
_LARGEST_SPEC = 64 << 10
"""Bytes of a lower volume's spec above which it is ignored; that of a CSI volume with all its fields has a few thousand."""
MOST_FREE = 100
"""Maximum number of mirrors of free volumes per lower cluster, because a lower cluster may create any number."""
CSI_DRIVERS = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver", namespaced=False)


@dataclass(eq=False, repr=False)
class VolumeController:
    """Keeps an upper mirror of every lower volume that the upper cluster uses or could use, keyed by volume name."""

    context: ClusterContext
    caches: VolumeCaches
    lower_nodes: Informer
    _created: Pace[str] = field(default_factory=lambda: Pace(burst=_CREATED_BURST, qps=_CREATED_QPS))
    """Limits how many mirrors are created in all, because the lower cluster chooses names and may delete volumes again."""
    _changed: Pace[str] = field(default_factory=Pace)
    """Limits the changes of each mirror."""
    _making: set[str] = field(default_factory=set)
    """Free mirrors, by name, that are being created or not in the cache yet."""
    _over: dict[str, None] = field(default_factory=dict)
    """Free volumes without a mirror, because there are ``MOST_FREE`` mirrors, in order."""
    _reported: set[tuple[str, str]] = field(default_factory=set)
    """Upper StorageClasses, and why free volumes of them get no mirror, that have been logged."""
    _seen_at: dict[str, float] = field(default_factory=dict)
    """Loop times at which other processes' virtual nodes were last seen, by name."""

    def __post_init__(self) -> None:
        """Register handlers on the caches."""
        self._to_upper_class = {
            below: above for above, below in self.context.config.volumes.storage_classes.items()
        }
        self.controller = self.context.controller("volumes", self.reconcile, workers=4, first_delay=0.5)
        self._watch()

    async def run(self) -> None:
        """Follow changes until cancelled; call it when the caches of volumes have synced."""
        await self.lower_nodes.wait_synced()
        await self._announce_driver()
        await self.controller.run()

    async def _announce_driver(self) -> None:
        """Ensure that the upper cluster has the CSIDriver before the first mirror; retry during an outage.

        No program implements the driver. The chart creates it, so that no right to create drivers is needed.
        """
        backoff = ExponentialBackoff(0.5, 60.0)
        while True:
            try:
                await self._create_driver()
            except Forbidden as error:
                self.context.log.warning(
                    "upper cluster has no CSIDriver for mirrors of volumes; pods may wait for them to be attached",
                    error=str(error),
                    next="helm upgrade creates it, or: kubectl apply, as in docs/operate/install.md",
                )
                return
            except (ApiError, ConfigError) as error:
                self.context.log.warning("CSIDriver not created in the upper cluster", error=str(error))
            else:
                return
            await asyncio.sleep(backoff.when(CSI_DRIVERS.plural))

    async def _create_driver(self) -> None:
        upper = self.context.upper
        with contextlib.suppress(Forbidden):  # accounts made for older releases may create it, but not get it
            if await find_object(upper, CSI_DRIVERS, translate.DRIVER) is not None:
                return
        with contextlib.suppress(AlreadyExists):
            await upper.create(CSI_DRIVERS, translate.csi_driver())

    async def reconcile(self, name: str) -> Result | None:
        """Create, update or delete the mirror of one lower volume."""
        lower = self.caches.lower_volumes.store.get(name)
        mirror_name = translate.mirror_name(self.context.name, name)
        mirror = self.caches.upper_volumes.store.get(mirror_name)
        self._over.pop(name, None)
        if lower is not None and lower.spec_size > _LARGEST_SPEC:
            return None
        # The name becomes part of the mirror, and a hostile server may send any text.
        desired = None
        if lower is not None and is_name(name):
            desired = await self._desired(lower.to_dict(), is_new=mirror is None)
        if (
            desired is not None
            and mirror is None
            and "claimRef" not in desired["spec"]
            and self._is_full(name)
        ):
            return None
        if desired is None:
            if mirror is not None and await self._may_go(name, lower, mirror):
                # The resourceVersion makes the deletion fail if the mirror was bound meanwhile.
                await delete_only(
                    self.context.upper,
                    resources.PERSISTENT_VOLUMES,
                    mirror,
                    resource_version=mirror.resource_version,
                )
            return None
        if mirror is None:
            if lower is not None and await self._belongs_to_other_process(lower):
                return Result(requeue_after=_OTHER_PROCESS_RETRY)
            if seconds := self._created.wait("", now=asyncio.get_running_loop().time()):
                return Result(requeue_after=seconds)
            mirror = await self._create(
                self._shared(lower, desired), is_free="claimRef" not in desired["spec"]
            )
            if mirror is None or translate.lower_name(mirror.to_dict(), self.context.name) != name:
                return None
        patch = translate.volume_patch(mirror.to_dict(), desired)
        if patch is not None:
            if seconds := self._changed.wait(name, now=asyncio.get_running_loop().time()):
                return Result(requeue_after=seconds)
            with contextlib.suppress(NotFound):
                await patch_only(self.context.upper, resources.PERSISTENT_VOLUMES, mirror, patch)
        return None

    def _shared(self, lower: Object | None, desired: dict[str, Any]) -> dict[str, Any]:
        """Return a new mirror; if its volume is claimed and on shared storage, other clusters reach it, too."""
        declared = self.context.config.volumes.shared
        storage = shared.storage_of(lower.to_dict(), declared) if lower is not None else ""
        if not storage or "claimRef" not in desired["spec"]:
            return desired
        return shared.share(desired, storage=storage, cluster=self.context.name)

    async def _belongs_to_other_process(self, lower: Object) -> bool:
        """Report whether another process in this lower cluster must create the mirror of a claimed volume.

        A mirror's node affinity cannot be changed, and each process knows only its own virtual nodes. So the
        mirror is created by the process that made the lower claim, or by any process if that process's
        virtual node no longer exists.
        """
        claim = self._lower_claim(lower.to_dict())
        node = claim.labels.get(names.LABEL_NODE) if claim is not None else None
        if not node or node in self.context.nodes:
            return False
        # Read at most every 30 s for all volumes of the node, because it may have thousands.
        now = asyncio.get_running_loop().time()
        if now - self._seen_at.get(node, -_OTHER_PROCESS_RETRY) >= _OTHER_PROCESS_RETRY:
            if not await is_virtual_node(self.context.upper, node):
                return False
            self._seen_at[node] = now
        return True

    async def _create(self, desired: dict[str, Any], *, is_free: bool) -> Object | None:
        """Create a mirror and return None; if its name is taken (a mirror without its label), return that volume."""
        mirror_name = desired["metadata"]["name"]
        if is_free:
            self._making.add(mirror_name)
        try:
            there = await create_new(self.context.upper, resources.PERSISTENT_VOLUMES, desired)
        except BaseException:
            self._making.discard(mirror_name)
            raise
        if there is not None or mirror_name in self.caches.upper_volumes.store:
            self._making.discard(mirror_name)
        if there is None:
            self.context.log.info("volume mirrored to the upper cluster", volume=mirror_name)
        return there

    async def _desired(self, lower: dict[str, Any], *, is_new: bool) -> dict[str, Any] | None:
        """Return the desired mirror; None: the upper cluster cannot use the volume.

        The node affinity is only that of a new mirror, because it cannot be changed later.
        """
        if lower["metadata"].get("deletionTimestamp"):
            return None
        claim: Object | None = None
        if lower["spec"].get("claimRef"):
            ours = self._lower_claim(lower)
            if ours is None:
                return None
            claim = self.caches.upper_claims.store.get(ownership.upper_key(ours))
            if claim is None or claim.uid != ours.labels.get(names.LABEL_UPPER_UID):
                return None
            above = claim.spec or {}
            if above.get("volumeName") not in {
                None,
                translate.mirror_name(self.context.name, lower["metadata"]["name"]),
            }:
                return None  # another process may know this lower cluster by another name
            storage_class = above.get("storageClassName") or ""
        else:
            below = lower["spec"].get("storageClassName") or ""
            storage_class = self._to_upper_class.get(below, below)
            if (lower.get("status") or {}).get("phase") != "Available" or not self._is_published(
                storage_class
            ):
                return None
        return translate.upper_volume(
            lower,
            cluster=self.context.name,
            cluster_labels={names.LABEL_LOWER_CLUSTER: self.context.name},
            nodes=await self._nodes(lower) if is_new else list(self.context.nodes),
            storage_class=storage_class,
            claim=claim.to_dict() if claim is not None else None,
        )

    def _is_published(self, storage_class: str) -> bool:
        """Report whether free volumes of an upper StorageClass get mirrors; log once why not, if the class exists."""
        found = self.caches.upper_classes.store.get(storage_class) if storage_class else None
        if found is None:
            return False
        if storage_class not in self.context.config.volumes.published:
            self._report(storage_class, "add the class to clusters[].volumes.published to publish them")
            return False
        if not translate.is_publishable(found.to_dict()):
            self._report(storage_class, "the provisioner of the class creates volumes in the upper cluster")
            return False
        return True

    def _is_full(self, name: str) -> bool:
        """Report whether the cluster has the maximum of free mirrors; the volume then waits for one less."""
        if self.caches.upper_volumes.store.count(INDEX_FREE, FREE) + len(self._making) < MOST_FREE:
            return False
        self._over[name] = None
        self._report("", f"at most {MOST_FREE} per lower cluster; others follow when these are bound")
        return True

    def _report(self, storage_class: str, why: str) -> None:
        if (storage_class, why) not in self._reported:
            self._reported.add((storage_class, why))
            self.context.log.warning(
                "free lower volumes are not published in the upper cluster",
                storage_class=storage_class,
                why=why,
            )

    def _lower_claim(self, lower: dict[str, Any]) -> Object | None:
        """Return the lower claim that a lower volume is bound to, if we made the claim."""
        reference = lower["spec"].get("claimRef") or {}
        ours = self.caches.lower_claims.store.get(f"{reference.get('namespace')}/{reference.get('name')}")
        if ours is None or (reference.get("uid") and reference["uid"] != ours.uid):
            return None
        return ours

    async def _may_go(self, name: str, lower: Object | None, mirror: Object) -> bool:
        """Report whether an unwanted mirror may be deleted: volume gone, or mirror unclaimed and its data not kept.

        Data is kept by a Released volume, and by a lower claim of ours that outlives its upper claim.
        """
        if lower is None:
            # Read live, because our cache may be behind: deleting the mirror cannot be undone.
            selector = f"metadata.name={name}"
            mirrored = await self.context.lower.list(resources.PERSISTENT_VOLUMES, field_selector=selector)
            return not mirrored.items
        is_kept = (lower.status or {}).get("phase") == "Released" or self._outlives(lower)
        return not is_kept and not (mirror.spec or {}).get("claimRef")

    def _outlives(self, lower: Object) -> bool:
        """Report whether a lower volume is bound to a lower claim of ours whose upper claim is gone.

        Otherwise the upper claim is bound to another mirror, and another claim must not be bound to this one.
        """
        if (ours := self._lower_claim(lower.to_dict())) is None:
            return False
        upper = self.caches.upper_claims.store.get(ownership.upper_key(ours))
        return upper is None or upper.uid != ours.labels.get(names.LABEL_UPPER_UID)

    async def _nodes(self, lower: dict[str, Any]) -> list[str]:
        """Return the virtual nodes that have a lower node that can reach a volume; if none has, all of them.

        All, too, if the volume has more terms than are compared.
        """
        reaching = []
        slicer = Slicer()
        for node in self.lower_nodes.store.list() if translate.has_readable_affinity(lower) else ():
            if translate.reachable_from(lower, {"metadata": {"name": node.name, "labels": node.labels}}):
                reaching.append(node.labels)
            await slicer.tick()
        found = [
            name
            for name, config in self.context.nodes.items()
            if any(config.node_selector.items() <= labels.items() for labels in reaching)
        ]
        return found or list(self.context.nodes)

    def _mirror_changed(self, mirror: Object) -> None:
        """Queue the next volume that waits because of the limit; a mirror may have been bound or deleted."""
        self._making.discard(mirror.name)
        if self._over and self.caches.upper_volumes.store.count(INDEX_FREE, FREE) < MOST_FREE:
            self.controller.queue.add(next(iter(self._over)))

    def _watch(self) -> None:
        caches, cluster = self.caches, self.context.name
        caches.upper_volumes.on_change(self._mirror_changed, self._mirror_changed)
        requeue_on_change(
            self.controller,
            (caches.lower_volumes, lambda volume: [volume.name]),
            (caches.lower_claims, lambda claim: [(claim.spec or {}).get("volumeName", "")]),
            (
                caches.upper_volumes,
                lambda mirror: [translate.lower_name({"spec": mirror.spec or {}}, cluster)],
            ),
            (caches.upper_classes, lambda _: [volume.name for volume in caches.lower_volumes.store.list()]),
        )

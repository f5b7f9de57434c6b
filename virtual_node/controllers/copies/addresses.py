"""Writes the addresses of a copied Ingress or Gateway to the status of the upper object.

Several lower clusters write to one status. Each adds its addresses, and removes only those that it has added. Its
copy records them before they are written, because upper users can change the upper object. The record has a keyed hash,
because users of the lower cluster can change the copy.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field

from clusterset.model import names
from controller_runtime.apimachinery.keyed_hash import KEY_BYTES
from controller_runtime.auth.secret_key import SecretKey
from controller_runtime.errors import ConfigError, NotFound
from controller_runtime.objects import Object
from controller_runtime.util.rate_limiter import Pace
from virtual_node.controllers.base.context import ClusterContext
from virtual_node.controllers.base.preconditions import patch_only
from virtual_node.translate.follow import addresses as translate
from virtual_node.translate.kinds import Kind

_KEY_AGAIN = 60.0
"""Seconds until the key is read again if it could not be read."""


@dataclass(eq=False, repr=False)
class AddressReports:
    """Reports the addresses of the copies of one kind in one lower cluster."""

    context: ClusterContext
    kind: Kind
    _key: bytes = b""
    _key_until: float = 0.0
    """Loop time until which a key of this process is used in place of the stored one."""
    _pace: Pace[str] = field(default_factory=Pace)
    """Limits the writes to each upper object."""

    async def report(self, upper: Object | None, copy: Object, *, is_leaving: bool = False) -> float:
        """Write the addresses of a copy to the upper status, and record on the copy those that were added.

        Addresses that were in the upper status before are not recorded, because others wrote them. Returns for how many
        seconds the write has to wait, because the addresses change too often; 0: it was done.

        Args:
            upper: the upper object; None: it is gone.
            copy: its copy.
            is_leaving: remove the addresses at once, because the copy is about to be deleted.

        Raises:
            ApiError: a cluster refuses, or the upper object has changed; the caller retries.
        """
        status = self.kind.addresses
        if upper is None or status is None:
            return 0.0
        below, above = copy.to_dict(), upper.to_dict()
        current = [] if is_leaving else status.read(below)
        if not current and names.ANNOTATION_REPORTED not in copy.annotations:
            return 0.0
        recorder = translate.Recorder(await self._read_key(), self.context.name, upper.uid)
        earlier, present = recorder.read(below), status.present(above)
        added = [entry for entry in current if entry not in earlier and entry not in present]
        if added:
            await self._record(copy, recorder.write([*earlier, *added]))
        wanted = status.merged(above, current, earlier)
        if wanted != present:
            seconds = self._pace.wait(upper.key, now=asyncio.get_running_loop().time())
            if seconds and not is_leaving:
                return seconds
            await patch_only(
                self.context.upper,
                self.kind.resource,
                upper,
                status.patch(wanted),
                resource_version=upper.resource_version,
                subresource="status",
            )
        if not is_leaving and any(entry not in current for entry in earlier):
            # Otherwise an address that another cluster has added meanwhile would be removed each time.
            await self._record(
                copy, recorder.write(entry for entry in [*earlier, *added] if entry in current)
            )
        return 0.0

    async def _record(self, copy: Object, record: str) -> None:
        patch = {"metadata": {"annotations": {names.ANNOTATION_REPORTED: record}}}
        await patch_only(self.context.lower, self.kind.resource, copy, patch)

    async def _read_key(self) -> bytes:
        """Return the stored key. If it cannot be read or written, return one that only this process knows.

        Then addresses of earlier processes are never removed.
        """
        now = asyncio.get_running_loop().time()
        if self._key and (not self._key_until or now < self._key_until):
            return self._key
        namespace = self.context.settings.leader_election.namespace
        stored = SecretKey(self.context.upper, namespace=namespace, name=translate.KEY_OBJECT)
        try:
            self._key, self._key_until = await stored.read(), 0.0
        except (ConfigError, NotFound) as error:
            if not self._key:
                self._key = secrets.token_bytes(KEY_BYTES)
                self.context.log.warning(
                    "addresses of copies are not removed after a restart, because their records cannot be signed",
                    error=str(error),
                )
            self._key_until = now + _KEY_AGAIN
        return self._key

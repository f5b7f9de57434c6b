"""Writes acknowledgements to the worker's Lease, one write at a time, always with the newest state."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from swarm.worker import fence
from swarm.worker.client.api import FAILURES, Api, Object, Pause, RequestError
from swarm.worker.identity import Settings
from swarm.worker.protocol.membership import Membership, compact

_log = logging.getLogger(__name__)

_PREFIX = "swarm.virtual-node.io/"
_WRITE = 5.0
"""Time limit of a write in seconds."""


class ReplacedError(Exception):
    """Another process runs as this worker: the pod was replaced, or a second process runs in it."""


class _NotReadyError(Exception):
    """The Lease cannot be written yet."""


@dataclass(eq=False)
class Reporter:
    """Keeps the acknowledgement in the Lease current."""

    api: Api
    settings: Settings
    membership: Membership
    content: Callable[[], dict[str, Any]]
    """Returns the acknowledgement to write."""
    taken: Callable[[float], None]
    """Called after each successful write of the current session with the time (``fence.now``) at which it was sent."""

    def __post_init__(self) -> None:
        self.collection = f"/apis/coordination.k8s.io/v1/namespaces/{self.settings.namespace}/leases"
        self.name = f"{self.settings.swarm}.{self.settings.worker}"
        self._lease: Object | None = None
        """The Lease as read or written last; None: the Lease must be read."""
        self._written: dict[str, Any] | None = None
        self._registered = ""
        """Session that was last written to the Lease; empty: none yet."""
        self._again = asyncio.Event()
        self._taken = asyncio.Event()
        """Set after each successful write."""

    def changed(self) -> None:
        """Wake ``run`` after a change of jobs, to write the acknowledgement if it differs."""
        self._again.set()

    def renew(self) -> None:
        """Make ``run`` write even if nothing changed."""
        self._written = None
        self._again.set()

    def seen(self, lease: Object | None) -> None:
        """Handle a change of the Lease, or its absence (None)."""
        if (
            lease is None
            or _holder(lease) not in self.membership.sessions
            or _uid(lease) != self.settings.pod_uid
        ):
            # The watch may be behind, so ``run`` reads the Lease.
            self._lease = None
            self._again.set()

    async def run(self) -> None:
        """Write acknowledgements until cancelled.

        Raises:
            ReplacedError: another process runs as this worker; this one must stop its jobs and must not write.
        """
        pause = Pause()
        while True:
            await self._due()
            try:
                await self._write()
                pause.reset()
            except _NotReadyError as error:
                _log.info("Lease %s %s", self.name, error)
                await pause.wait(self._again)
            except FAILURES as error:
                self._lease = None
                if not isinstance(error, RequestError) or error.status != 409:
                    _log.warning("acknowledgement: %s", str(error) or type(error).__name__)
                await pause.wait()

    async def flush(self) -> None:
        """Wait until the current state has been acknowledged."""
        while self._written != self.content():
            self._taken.clear()
            await self._taken.wait()

    async def _due(self) -> None:
        """Wait until a write is due."""
        while self._lease is not None and self._written == self.content():
            times = self.membership.times
            wait = times.renew_at - fence.now() if times else None
            if wait is not None and wait <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._again.wait()
            self._again.clear()

    async def _write(self) -> None:
        # Cleared before the state is read, so that later changes set it again.
        self._again.clear()
        path = f"{self.collection}/{self.name}"
        if self._lease is None:
            self._lease = await self._read(path)
        session = self.membership.session
        if session not in {self._registered, _holder(self._lease)}:
            self.membership.succeed(_annotation(self._lease, "acknowledged"))
        content = self.content()
        times = self.membership.times
        if self.membership.fenced or (times is not None and fence.now() >= times.stop_at):
            # The controller may be about to end this session, so it must not be renewed.
            self.membership.fenced = True
            raise _NotReadyError("is written by the next session")
        lease = copy.deepcopy(self._lease)
        lease["spec"] = {
            **(lease.get("spec") or {}),
            "holderIdentity": session,
            "renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        annotations = lease["metadata"].setdefault("annotations", {})
        annotations[_PREFIX + "acknowledged"] = compact(content)
        sent_at = fence.now()
        self._lease = await self.api.put(path, lease, within=_WRITE)
        self._written = content
        self._registered = session
        if session == self.membership.session:
            self.taken(sent_at)
        self._taken.set()

    async def _read(self, path: str) -> Object:
        """Read the Lease, and check that this process may write it."""
        try:
            lease = await self.api.get(path)
        except RequestError as error:
            if error.status == 404:
                raise _NotReadyError("does not exist yet") from None
            raise
        if _uid(lease) != self.settings.pod_uid:
            if self._registered:
                raise ReplacedError(f"the Lease is for pod {_uid(lease)}, this is {self.settings.pod_uid}")
            # The controller has not noticed yet that a pod of the same name was created again.
            raise _NotReadyError(f"is for pod {_uid(lease) or '(none)'}, this is {self.settings.pod_uid}")
        holder = _holder(lease)
        if self._registered == self.membership.session and not holder:
            # The controller ended this session, or the Lease was created again.
            self.membership.fenced = True
            raise _NotReadyError("has no session")
        if holder and self._registered and holder not in self.membership.sessions:
            raise ReplacedError(f"session {holder} replaced session {self.membership.session}")
        return lease


def _holder(lease: Object) -> str:
    return str((lease.get("spec") or {}).get("holderIdentity") or "")


def _uid(lease: Object) -> str:
    return _annotation(lease, "pod-uid")


def _annotation(lease: Object, name: str) -> str:
    return str((lease["metadata"].get("annotations") or {}).get(_PREFIX + name) or "")

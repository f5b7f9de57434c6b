"""Requests of a worker to its API server: sources of its share (the list of its jobs), and the acknowledgement in its Lease.

``Reporter`` makes one write at a time, always with the newest state.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
import logging
import random
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp

from swarm.worker import fence
from swarm.worker.certificates import Certificates
from swarm.worker.identity import Settings
from swarm.worker.protocol import Membership, Part, Share, ShareError, compact, join, parse, parse_part

_log = logging.getLogger(__name__)

_KEY = "share.json"
_CHECKSUM = "swarm.virtual-node.io/checksum"
_POLL = 1.0
_PREFIX = "swarm.virtual-node.io/"
_WRITE = 5.0
"""Time limit of a write in seconds."""
_REQUEST = 10.0
"""Time limit of a request in seconds."""
_WATCH = 240.0, 300.0
"""Range of seconds after which the server ends a watch; random, so that workers do not reconnect together."""
_SILENCE = 90.0
"""Seconds without a byte after which a watch is restarted. Servers send a bookmark each minute."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
_LONGEST_EVENT = 4 * 1024 * 1024
"""Longest line of a watch in bytes; an object has at most 1.5 MiB."""

Object = dict[str, Any]


class RequestError(Exception):
    """The server returned an error."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


FAILURES = (RequestError, aiohttp.ClientError, OSError, ValueError, TimeoutError)
"""Exceptions that any request may raise."""


class Pause:
    """Waits between attempts, longer after each failure."""

    def __init__(self) -> None:
        self._seconds = _FIRST_PAUSE

    def reset(self) -> None:
        """Reset the delay after a successful attempt."""
        self._seconds = _FIRST_PAUSE

    async def wait(self, event: asyncio.Event | None = None) -> None:
        """Sleep for the delay or until the event is set, then double the delay."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._seconds * random.uniform(0.8, 1.2)):  # noqa: S311 - spreads requests
                await (event or asyncio.Event()).wait()
        self._seconds = min(self._seconds * 2, _LONGEST_PAUSE)


@contextlib.asynccontextmanager
async def connected(settings: Settings) -> AsyncIterator[Api]:
    """Yield a client, and close its connections after the block.

    Raises:
        SetupError: a certificate cannot be read.
    """
    certificates = Certificates(settings) if settings.api_server.startswith("https:") else None
    connector = aiohttp.TCPConnector(limit=0, socket_factory=_socket)
    async with aiohttp.ClientSession(connector=connector, read_bufsize=_LONGEST_EVENT // 2) as session:
        yield Api(settings, session, certificates)


@dataclass(frozen=True, slots=True)
class Api:
    """Client for an API server; paths begin with ``/api``."""

    settings: Settings
    session: aiohttp.ClientSession
    certificates: Certificates | None = None
    """None: the API server is reached without TLS."""

    async def get(self, path: str) -> Object:
        """Return an object or a list.

        Raises:
            RequestError: the server refused; status 404: it does not exist.
        """
        return await self._send("GET", path)

    async def put(self, path: str, body: Object, *, within: float = _REQUEST) -> Object:
        """Replace an object; return the stored object.

        Raises:
            RequestError: the server refused; status 409: the object changed since it was read.
        """
        return await self._send("PUT", path, body, within=within)

    async def follow(self, collection: str, name: str, changed: Callable[[Object | None], None]) -> None:
        """Call ``changed`` with the object, now and after every change; with None if it does not exist. Never returns."""
        pause = Pause()
        loop = asyncio.get_running_loop()
        path = f"{collection}?fieldSelector=metadata.name%3D{name}"
        while True:
            begun = loop.time()
            try:
                listed = await self.get(path)
                changed(next(iter(listed.get("items") or ()), None))
                await self._watch(f"{path}&resourceVersion={listed['metadata']['resourceVersion']}", changed)
            except FAILURES as error:
                _log.warning("following %s/%s: %s", collection, name, str(error) or type(error).__name__)
            if loop.time() - begun > _LONGEST_PAUSE:
                pause.reset()
            await pause.wait()

    async def _watch(self, path: str, changed: Callable[[Object | None], None]) -> None:
        """Call ``changed`` after each change, until the server ends the watch or sends nothing for ``_SILENCE`` seconds."""
        limit = random.uniform(*_WATCH)  # noqa: S311 - spreads requests
        query = f"watch=1&allowWatchBookmarks=true&timeoutSeconds={limit:.0f}"
        url = f"{self.settings.api_server}{path}&{query}"
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_REQUEST, sock_read=_SILENCE)
        async with self.session.get(
            url, headers=self._headers(), timeout=timeout, allow_redirects=False, ssl=self._tls()
        ) as answer:
            await _check(answer)
            with contextlib.suppress(TimeoutError):
                async for line in answer.content:
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        return  # usually 410: the resourceVersion is too old
                    if event["type"] != "BOOKMARK":
                        changed(None if event["type"] == "DELETED" else event["object"])

    async def _send(
        self, method: str, path: str, body: Object | None = None, *, within: float = _REQUEST
    ) -> Object:
        timeout = aiohttp.ClientTimeout(total=within)
        async with self.session.request(
            method,
            self.settings.api_server + path,
            json=body,
            headers=self._headers(),
            timeout=timeout,
            allow_redirects=False,
            ssl=self._tls(),
        ) as answer:
            await _check(answer)
            found: Object = await answer.json()
            return found

    def _tls(self) -> ssl.SSLContext | bool:
        return True if self.certificates is None else self.certificates.current()

    def _headers(self) -> dict[str, str]:
        # Read for each request, because the kubelet replaces tokens before they expire.
        file = self.settings.token_file
        return {"Authorization": f"Bearer {Path(file).read_text(encoding='utf-8').strip()}"} if file else {}


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status >= 300:
        text = await answer.text()
        try:
            message = str(json.loads(text)["message"])
        except (ValueError, KeyError, TypeError):
            message = text[:200]
        raise RequestError(answer.status, message)


def _socket(address: Any) -> socket.socket:
    """Return a socket that detects within half a minute that the peer is unreachable."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family=family, type=kind, proto=protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 10),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 4),
        ("TCP_USER_TIMEOUT", 30_000),
    ):
        if hasattr(socket, name):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    return made


class ConfigMaps:
    """A share in one or several ConfigMaps.

    ``found`` is called with each complete, valid share, and ``problem`` with the reason why a share cannot be used.
    """

    def __init__(
        self, api: Api, settings: Settings, found: Callable[[Share], None], problem: Callable[[str], None]
    ) -> None:
        self._found = found
        self._problem = problem
        self._api = api
        self._collection = f"/api/v1/namespaces/{settings.namespace}/configmaps"
        self._name = f"{settings.swarm}.{settings.worker}"
        self._latest: Object | None = None
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Watch the ConfigMaps and call ``found`` and ``problem``, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._api.follow(self._collection, self._name, self._seen))
            group.create_task(self._collect())

    def _seen(self, config_map: Object | None) -> None:
        # Jobs keep running while the ConfigMap is deleted; the controller creates it again.
        if config_map is not None:
            self._latest = config_map
            self._changed.set()

    async def _collect(self) -> None:
        pause = Pause()
        while True:
            await self._changed.wait()
            self._changed.clear()
            assert self._latest is not None
            try:
                first = parse(*_text(self._latest))
                share = join(first, [await self._part(number) for number in range(1, first.parts)])
            except (ShareError, *FAILURES) as error:
                self._problem(f"ConfigMap {self._name}: {error}")
                # Parts are written one after the other and only the first is watched, so all are read again.
                await pause.wait(self._changed)
                self._changed.set()
            else:
                pause.reset()
                self._found(share)

    async def _part(self, number: int) -> Part:
        return parse_part(*_text(await self._api.get(f"{self._collection}/{self._name}.{number}")))


class File:
    """A share in a file, such as a mounted ConfigMap. The arguments are as for ``ConfigMaps``."""

    def __init__(
        self, settings: Settings, found: Callable[[Share], None], problem: Callable[[str], None]
    ) -> None:
        self._found = found
        self._problem = problem
        self._path = Path(settings.file)
        self._names = (f"{settings.worker}.json", _KEY)

    async def run(self) -> None:
        """Read the file when it changes, until cancelled."""
        seen = None
        while True:
            with contextlib.suppress(FileNotFoundError):
                file = self._file()
                status = file.stat()
                stamp = str(file), status.st_mtime_ns, status.st_ino, status.st_size
                if stamp != seen and self._read(file):
                    seen = stamp
            await asyncio.sleep(_POLL)

    def _file(self) -> Path:
        """Return the file with symbolic links resolved, because the kubelet replaces a directory behind such links."""
        path = self._path.resolve(strict=True)
        if path.is_dir():
            path = next((path / name for name in self._names if (path / name).exists()), path / _KEY)
        return path.resolve(strict=True)

    def _read(self, file: Path) -> bool:
        """Read the file and report its share; return False on an error, so that it is read again."""
        try:
            text = file.read_bytes()
            checksum = file.with_name(file.name + ".sha256")
            share = parse(text, _digest(checksum))
            if share.parts > 1:
                raise ShareError("is split into parts, which can be read only from the API")
        except (OSError, ShareError) as error:
            self._problem(f"{file}: {error}")
            return False
        self._found(share)
        return True


def _text(config_map: Object) -> tuple[bytes, str]:
    """Return a ConfigMap's share and its checksum."""
    data: dict[str, Any] = config_map.get("data") or {}
    if _KEY not in data:
        raise ShareError(f"has no key {_KEY}")
    annotations = config_map["metadata"].get("annotations") or {}
    if not annotations.get(_CHECKSUM):
        raise ShareError("has no checksum")
    return str(data[_KEY]).encode(), str(annotations[_CHECKSUM])


def _digest(file: Path) -> str:
    """Return the checksum in the file beside the share; empty if there is no such file."""
    if not file.exists():
        return ""
    words = file.read_text(encoding="utf-8").split()
    return "sha256:" + (words[0].removeprefix("sha256:") if words else "(empty)")


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

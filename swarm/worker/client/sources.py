"""Sources of a worker's share (the list of its jobs): ConfigMaps of the API, or a mounted file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swarm.worker.client.api import FAILURES, Api, Object, Pause
from swarm.worker.identity import Settings
from swarm.worker.protocol.share import Part, Share, ShareError, join, parse, parse_part

_log = logging.getLogger(__name__)

_KEY = "share.json"
_CHECKSUM = "swarm.virtual-node.io/checksum"
_POLL = 1.0


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

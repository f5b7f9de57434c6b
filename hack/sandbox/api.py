"""A cluster's API without kubectl: for frequent requests, because a process for each one would load the machine."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from hack.sandbox.errors import SandboxError
from hack.sandbox.process import Process

_SECONDS = 30.0
"""Time limit of a request. It is long because a machine under load is slow."""
_HEALTHY_SECONDS = 150.0


class Api:
    """An administrator's access to one API server.

    Its connections stay open until ``close``, because a handshake takes more CPU time than most requests. They belong
    to the event loop of the first request.
    """

    def __init__(self, server: str, *, ca: Path, certificate: Path, key: Path) -> None:
        self._server = server
        self._files = (ca, certificate, key)
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections; the next request opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def read(
        self, path: str, *, query: Mapping[str, str] | None = None, accept: str = "application/json"
    ) -> dict[str, Any]:
        """Return an object or a list, given by its path such as ``/api/v1/nodes``.

        Raises:
            SandboxError: it does not exist, or the server does not answer; quotes the response.
        """
        return await self._call("GET", path, query=query, headers={"Accept": accept})

    async def create(self, path: str, body: Mapping[str, Any], *, dry_run: bool = False) -> dict[str, Any]:
        """Create an object in the collection at a path, and return it; a field that the server does not know is an error.

        Raises:
            SandboxError: the server refuses it, or does not answer; quotes the response.
        """
        query = {"fieldValidation": "Strict", **({"dryRun": "All"} if dry_run else {})}
        return await self._call("POST", path, query=query, body=body)

    async def merge(self, path: str, change: Mapping[str, Any], *, strategic: bool = False) -> dict[str, Any]:
        """Change an object by a merge patch.

        Args:
            path: of the object or its subresource.
            change: the patch.
            strategic: whether lists are merged by their keys, as ``kubectl patch`` does.

        Raises:
            SandboxError: the server refuses it, or does not answer; quotes the response.
        """
        kind = "strategic-merge-patch" if strategic else "merge-patch"
        return await self._call(
            "PATCH", path, body=change, headers={"Content-Type": f"application/{kind}+json"}
        )

    async def delete(self, path: str, *, query: Mapping[str, str] | None = None) -> None:
        """Request the deletion of an object, or of those of a collection, without waiting for it.

        Args:
            path: of the object or the collection.
            query: options of the deletion, such as ``gracePeriodSeconds``.

        Raises:
            SandboxError: the server refuses it, or does not answer; quotes the response.
        """
        await self._call("DELETE", path, query=query)

    async def ready(self) -> str:
        """Return an empty text when ``/readyz`` returns ok, otherwise the problem."""
        try:
            async with self._connected().get(f"{self._server}/readyz") as answer:
                return "" if answer.status == 200 else await answer.text()
        except (aiohttp.ClientError, TimeoutError) as error:
            return str(error) or "no answer"

    async def _call(
        self,
        verb: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> dict[str, Any]:
        try:
            async with self._connected().request(
                verb, f"{self._server}{path}", params=query, json=body, headers=headers
            ) as answer:
                found: dict[str, Any] = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SandboxError(f"{verb} {path}: {str(error) or 'no answer'}") from None
        if answer.status >= 400:
            raise SandboxError(f"{verb} {path}: {answer.status} {found.get('message')}")
        return found

    def _connected(self) -> aiohttp.ClientSession:
        if self._session is None:
            ca, certificate, key = self._files
            context = ssl.create_default_context(cafile=str(ca))
            context.load_cert_chain(certificate, key)
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(ssl=context), timeout=aiohttp.ClientTimeout(total=_SECONDS)
            )
        return self._session


async def wait_healthy(process: Process, url: str) -> None:
    """Wait until a process returns 200 at a URL; its certificate is not verified.

    Raises:
        SandboxError: the process ended, or did not return 200 in time; quotes its last response and log line.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _HEALTHY_SECONDS
    said = "no answer"
    async with aiohttp.ClientSession() as session:
        while loop.time() < deadline:
            process.check()
            try:
                async with session.get(url, ssl=False) as answer:
                    if answer.status == 200:
                        return
                    said = await answer.text()
            except aiohttp.ClientError as error:
                said = str(error)
            await asyncio.sleep(0.1)
    raise SandboxError(f"{process.name} is not ready: {said}: {process.last_line()} (log: {process.log})")

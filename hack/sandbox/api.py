"""A cluster's API without kubectl: for what is asked ten times a second, where a process each would be the load."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import aiohttp

from hack.sandbox.errors import SandboxError

_SECONDS = 30.0
"""A request's time limit. A machine under load is slow, not broken."""


class Api:
    """An administrator's way to one API server. It holds nothing open, so it belongs to no event loop."""

    def __init__(self, server: str, *, ca: Path, certificate: Path, key: Path) -> None:
        self._server = server
        self._files = (ca, certificate, key)
        self._context: ssl.SSLContext | None = None

    async def read(self, path: str, *, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        """An object or a list, by its path such as ``/api/v1/nodes``.

        Raises:
            SandboxError: it is not there, or the server does not answer; quotes it.
        """
        return await self._call("GET", path, query=query)

    async def create(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object in the collection at a path; a field that the server does not know is an error.

        Raises:
            SandboxError: the server refuses it, or does not answer; quotes it.
        """
        return await self._call("POST", path, query={"fieldValidation": "Strict"}, body=body)

    async def delete(self, path: str) -> None:
        """Ask for an object's end, and wait for nothing.

        Raises:
            SandboxError: the server refuses it, or does not answer; quotes it.
        """
        await self._call("DELETE", path)

    async def ready(self) -> str:
        """Empty when ``/readyz`` says ok, else what is wrong."""
        try:
            async with self._session() as session, session.get(f"{self._server}/readyz") as answer:
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
    ) -> dict[str, Any]:
        try:
            async with (
                self._session() as session,
                session.request(verb, f"{self._server}{path}", params=query, json=body) as answer,
            ):
                found: dict[str, Any] = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise SandboxError(f"{verb} {path}: {str(error) or 'no answer'}") from None
        if answer.status >= 400:
            raise SandboxError(f"{verb} {path}: {answer.status} {found.get('message')}")
        return found

    def _session(self) -> aiohttp.ClientSession:
        if self._context is None:
            ca, certificate, key = self._files
            self._context = ssl.create_default_context(cafile=str(ca))
            self._context.load_cert_chain(certificate, key)
        return aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._context),
            timeout=aiohttp.ClientTimeout(total=_SECONDS),
        )

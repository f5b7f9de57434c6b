"""How we prove who we are to an apiserver: headers, or a client certificate, that are always fresh."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import KeyPair

REREAD_SECONDS = 60.0
"""Age at which a file that somebody may rotate is looked at again, as client-go does."""


class Credentials:
    """A source of authenticating headers; this one has none (client certificates need none).

    Attributes:
        certificate: a client certificate that came with the headers; None where there is none, or where the TLS
            context has one of its own.
    """

    certificate: KeyPair | None = None

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """The headers to send now.

        Args:
            refresh: after a 401: do not trust what is remembered.

        Raises:
            ConfigError: there is nothing to send; names the source and what is wrong with it.
        """
        return {}

    async def close(self) -> None:
        """Stop what runs on our behalf."""


class StaticCredentials(Credentials):
    """Headers that never change."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Always the same."""
        return self._headers


class TokenFile(Credentials):
    """A bearer token in a file that somebody rotates, such as a pod's own."""

    def __init__(self, path: Path, *, source: str, fallback: str = "") -> None:
        """Set up; the file is read on first use.

        Args:
            path: the file; white space around the token does not count.
            source: names the file's role in messages.
            fallback: the token until the file can be read.
        """
        self._path = path
        self._source = source
        self._headers = bearer(fallback) if fallback else {}
        self._read_at: float | None = None

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """The file's token, read again once a minute and after a 401; the last good one while it is unreadable."""
        now = asyncio.get_running_loop().time()
        if refresh or self._read_at is None or now - self._read_at >= REREAD_SECONDS:
            try:
                token = self._path.read_text(encoding="utf-8").strip()
                problem = token_problem(token)
            except (OSError, UnicodeDecodeError) as error:
                token, problem = "", getattr(error, "strerror", None) or "is not text"
            if not problem:
                self._headers = bearer(token)
            elif not self._headers:
                raise ConfigError(f"{self._source}: token file {self._path}: {problem}")
            self._read_at = now
        return self._headers


def token_problem(token: str) -> str:
    """Why a text cannot be a bearer token; empty when it can. RFC 6750 allows less than this lets through."""
    if not token:
        return "is empty"
    if not token.isascii() or not token.isprintable() or " " in token:
        return "is no token: it has characters that a header cannot carry"
    return ""


def bearer(token: str) -> dict[str, str]:
    """The header of a bearer token."""
    return {"Authorization": f"Bearer {token}"}

"""Credentials for an API server: always current headers, or a client certificate."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

from controller_runtime.errors import ConfigError
from controller_runtime.tls.pem import KeyPair

REREAD_SECONDS = 60.0
"""Age in seconds at which a file that may be rotated is read again, as in client-go."""


class Credentials:
    """A source of authenticating headers.

    This base class returns none, because a client certificate needs no header.

    Attributes:
        certificate: the client certificate that a plugin returned with the headers; None: it returned none.
            The TLS context may still have one from a file.
    """

    certificate: KeyPair | None = None

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the headers to send now.

        Args:
            refresh: whether to ignore cached credentials, after a 401.

        Raises:
            ConfigError: there are no headers to send; the error contains the source and the reason.
        """
        return {}

    async def close(self) -> None:
        """Stop subprocesses of these credentials."""


class StaticCredentials(Credentials):
    """Headers that never change."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the fixed headers."""
        return self._headers


class TokenFile(Credentials):
    """A bearer token in a file that may be rotated, such as a pod's service account token."""

    def __init__(self, path: Path, *, source: str, fallback: str = "") -> None:
        """Create credentials; the file is read on first use.

        Args:
            path: the file; white space around the token is ignored.
            source: the file's role, for messages.
            fallback: the token until the file can be read.
        """
        self._path = path
        self._source = source
        self._headers = bearer(fallback) if fallback else {}
        self._read_at: float | None = None

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the header of the token.

        The file is read once a minute and after a 401. If it is unreadable, the last valid token is kept.
        """
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
    """Return why a text cannot be a bearer token; empty if it can. RFC 6750 is stricter."""
    if not token:
        return "is empty"
    if not token.isascii() or not token.isprintable() or " " in token:
        return "is not a token: it has characters that an HTTP header must not have"
    return ""


def bearer(token: str) -> dict[str, str]:
    """Return the header of a bearer token."""
    return {"Authorization": f"Bearer {token}"}

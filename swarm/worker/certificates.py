"""The TLS of a worker's requests to its API server, renewed when a certificate file changes.

Certificates are rotated while a worker runs. Without renewal, it could not acknowledge any more after the old ones expire.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from swarm.worker.identity import Settings, SetupError

_log = logging.getLogger(__name__)


class Certificates:
    """The current TLS context of a worker."""

    def __init__(self, settings: Settings) -> None:
        """Read the files.

        Raises:
            SetupError: a certificate cannot be read.
        """
        self._settings = settings
        self._stamp = self._read_stamp()
        self._context = context(settings)

    def current(self) -> ssl.SSLContext:
        """Return the context of the current files; the last valid one while they are incomplete.

        Another context means new connections, because aiohttp compares it.
        """
        # Read before the files, so that a change in between is noticed the next time.
        stamp = self._read_stamp()
        if stamp != self._stamp:
            try:
                self._context = context(self._settings)
            except SetupError as error:
                _log.warning("certificates are not renewed yet: %s", error)
            else:
                self._stamp = stamp
        return self._context

    def _read_stamp(self) -> tuple[tuple[int, int, int] | None, ...]:
        """Return a value that changes when a file changes."""
        own = self._settings
        return tuple(_stamp(path) for path in (own.ca_file, own.client_cert_file, own.client_key_file))


def context(settings: Settings) -> ssl.SSLContext:
    """Return a new context.

    Raises:
        SetupError: a certificate cannot be read.
    """
    try:
        made = ssl.create_default_context(cafile=settings.ca_file or None)
        # As in controller_runtime.tls.pem, which workers cannot import: Kubernetes' own CAs often lack the extensions that
        # Python >= 3.13 requires, and an intermediate CA is trusted without its root.
        made.verify_flags &= ~ssl.VERIFY_X509_STRICT
        made.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if settings.client_cert_file:
            key = settings.client_key_file or None
            made.load_cert_chain(settings.client_cert_file, key, password=_no_password)
    except (OSError, ValueError) as error:
        raise SetupError(f"certificates cannot be read: {error}") from error
    return made


def _no_password() -> bytes:
    """Raise, because OpenSSL would prompt for the password of an encrypted key on the terminal."""
    raise ValueError("the private key is encrypted; give an unencrypted one")


def _stamp(path: str) -> tuple[int, int, int] | None:
    """Return a value that changes when a file changes; None: there is no such file."""
    try:
        status = Path(path).stat() if path else None
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_size, status.st_ino) if status is not None else None

"""Certificates and keys as PEM: their files, and the TLS to an API server that uses them.

It does not import cryptography, which takes 0.1 s of CPU time.
"""

from __future__ import annotations

import contextlib
import os
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controller_runtime.errors import ConfigError

Material = Path | bytes | None
"""A PEM file, which may be rotated, or its contents."""


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate (optionally followed by its chain) and its private key, both PEM."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"KeyPair(certificate=<{len(self.certificate)} bytes>, key=<hidden>)"

    def write(self, certificate_path: str | Path, key_path: str | Path) -> None:
        """Write both files; the key file is readable only by its owner from its creation on."""
        Path(certificate_path).write_bytes(self.certificate)
        Path(key_path).unlink(missing_ok=True)
        descriptor = os.open(key_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(self.key)


@contextlib.contextmanager
def as_file(data: bytes) -> Iterator[str]:
    """Yield a path from which OpenSSL can read the bytes; in memory if possible, otherwise on disk."""
    if hasattr(os, "memfd_create"):
        with os.fdopen(os.memfd_create("pem"), "wb", buffering=0) as file:
            file.write(data)
            yield f"/proc/self/fd/{file.fileno()}"
    else:
        import tempfile  # noqa: PLC0415 - only systems other than Linux need it

        with tempfile.NamedTemporaryFile(buffering=0) as file:
            file.write(data)
            yield file.name


def no_password() -> bytes:
    """Raise, because OpenSSL would prompt for the password of an encrypted key on the terminal."""
    raise ValueError("the private key is encrypted; give an unencrypted one")


def file_stamp(path: Path) -> tuple[int, int, int, int] | None:
    """Return a value that changes when a file changes; None: there is no such file."""
    with contextlib.suppress(OSError):
        status = path.stat()
        return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev
    return None


@dataclass(frozen=True, slots=True, repr=False)
class TlsMaterial:
    """The parts of a TLS context.

    Attributes:
        source: the origin of these parts, for messages.
        authority: the CAs to trust; None: those of the system.
        certificate: our client certificate, optionally followed by its chain; None: none.
        key: the private key; None: it is in the certificate's file.
        verify: whether to verify the server's certificate.
    """

    source: str
    authority: Material = None
    certificate: Material = None
    key: Material = None
    verify: bool = True

    def context(self, identity: KeyPair | None = None) -> ssl.SSLContext:
        """Return a new context.

        Args:
            identity: a client certificate from a credential plugin, used instead of ``certificate``.

        Raises:
            ConfigError: names the file, or the source, and what is wrong with it.
        """
        with self._with_source("certificate-authority", self.authority), _file(self.authority) as authority:
            context = ssl.create_default_context(cafile=authority)
        # Kubernetes' own CAs often lack the extensions that Python >= 3.13 requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        # An intermediate CA in a kubeconfig is trusted without its root, as in Go and Python >= 3.13.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if not self.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        certificate, key = (
            (self.certificate, self.key) if identity is None else (identity.certificate, identity.key)
        )
        if certificate is not None:
            with (
                self._with_source("client-certificate", certificate),
                _file(certificate) as certificate_file,
                _file(key) as key_file,
            ):
                assert certificate_file is not None
                context.load_cert_chain(certificate_file, key_file, password=no_password)
        return context

    def stamp(self) -> tuple[object, ...]:
        """Return a value that changes when a file changes. It also changes when a file disappears."""
        parts = (self.authority, self.certificate, self.key)
        return tuple(file_stamp(part) for part in parts if isinstance(part, Path))

    @contextlib.contextmanager
    def _with_source(self, what: str, material: Material) -> Iterator[None]:
        try:
            yield
        except (ssl.SSLError, OSError, ValueError) as error:
            where = f" {material}" if isinstance(material, Path) else ""
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{self.source}: {what}{where}: {' '.join(str(reason).split())}") from None


def _file(material: Material) -> contextlib.AbstractContextManager[str | None]:
    if isinstance(material, bytes):
        return as_file(material)
    return contextlib.nullcontext(None if material is None else str(material))

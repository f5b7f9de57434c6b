"""Certificates and keys as PEM, and their files, without importing cryptography, which takes 0.1 s of CPU time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


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

"""TLS to an API server: the CAs that we trust, and our client certificate."""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from controller_runtime.errors import ConfigError
from controller_runtime.tls.pem import KeyPair, as_file, file_stamp, no_password

Material = Path | bytes | None
"""A PEM file, which may be rotated, or its contents."""


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

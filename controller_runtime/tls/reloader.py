"""Serving certificates that are reloaded when their files change.

A server listens with one *front* context for its lifetime. At every handshake the front's SNI callback
assigns the newest *loaded* context to the connection, so a new certificate or client CA applies to the next
connection, and open connections continue. Pairs are not loaded into the front itself, because after a failed
load OpenSSL would keep half of the pair and refuse every handshake. OpenSSL also calls the callback for
clients that send no server name, as API servers that dial a kubelet's IP do.

Session tickets are off, because a resumed session would skip the check against the client CA.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Any, Self

from prometheus_client import Counter, Gauge

from controller_runtime import log
from controller_runtime.errors import ConfigError
from controller_runtime.tls.key_pairs import expiry
from controller_runtime.tls.pem import KeyPair, as_file, file_stamp, no_password

_RELOAD_ERRORS = Counter(
    "virtual_node_certificate_reload_errors_total",
    "Changed serving certificates that could not be loaded; the previous one stays in use.",
    ["name"],
)
_EXPIRATION = Gauge(
    "virtual_node_certificate_expiration_timestamp_seconds",
    "Unix time at which the serving certificate in use expires.",
    ["name"],
)
_log = log.get_logger(component="certificates")

ClientCa = str | Path | bytes
"""A CA bundle: the path of a PEM file that is reloaded when it changes (str, Path), or fixed PEM (bytes)."""

_INTERVAL = 10.0
"""Seconds between two checks of the files."""


@dataclass(eq=False, repr=False)
class CertificateReloader:
    """A server's TLS context that follows its files.

    Raises:
        ConfigError: a file cannot be read or used; names the file.
    """

    cert_path: str | Path
    """PEM certificate, followed by its chain."""
    key_path: str | Path
    """PEM private key, not encrypted."""
    _: KW_ONLY
    pair: KeyPair | None = None
    """A pair in memory, used instead of the two files (``from_pair``)."""
    client_ca: ClientCa = ""
    """CA of client certificates. With it, clients are asked for a certificate and may connect without one
    (``CERT_OPTIONAL``); an invalid certificate fails the handshake. Empty: clients are not asked."""
    name: str = "serving"
    """Label of the metrics."""

    def __post_init__(self) -> None:
        self._pair_paths = (Path(self.cert_path), Path(self.key_path))
        ca_paths = [Path(self.client_ca)] if self.client_ca and not isinstance(self.client_ca, bytes) else []
        self._paths = tuple(ca_paths if self.pair is not None else [*self._pair_paths, *ca_paths])
        self._front = _bare_context(ask_clients=bool(self.client_ca))
        self._front.sni_callback = self._choose
        self._stamp = self._look()
        self._current = self._load(self.pair, self.client_ca)

    @classmethod
    def from_pair(cls, pair: KeyPair, *, client_ca: ClientCa = "", name: str = "serving") -> Self:
        """Return a reloader for a pair in memory; only client CA files are followed.

        Raises:
            ConfigError: the pair or a CA cannot be used.
        """
        return cls("", "", pair=pair, client_ca=client_ca, name=name)

    @property
    def verifies_clients(self) -> bool:
        """Report whether there is a CA of client certificates."""
        return bool(self.client_ca)

    @property
    def context(self) -> ssl.SSLContext:
        """Return the context to listen with; always the same object."""
        return self._front

    def is_current(self, connection: ssl.SSLObject) -> bool:
        """Report whether a connection uses the current certificate and client CA."""
        return connection.context is self._current

    def replace(self, pair: KeyPair) -> None:
        """Serve another pair from the next connection on; only for a reloader created by ``from_pair``.

        Raises:
            ConfigError: the pair cannot be used; the previous one stays.
        """
        self._current = self._load(pair, self.client_ca)
        self.pair = pair

    def trust(self, client_ca: bytes) -> None:
        """Replace the CAs of client certificates by this CA (PEM) from the next connection on.

        Raises:
            ConfigError: the CA cannot be used; nothing changes.
        """
        self._current = self._load(self.pair, client_ca)
        self.client_ca = client_ca
        self._front.verify_mode = self._current.verify_mode

    def forget(self) -> None:
        """Remove the expiry metric of a certificate that is no longer served."""
        with contextlib.suppress(KeyError):
            _EXPIRATION.remove(self.name)

    async def run(self) -> None:
        """Follow the files until cancelled; never raises.

        Checks modification time, size and inode behind symlinks every ``_INTERVAL`` seconds. Secret volumes
        swap a symlink two levels up, which no file watch reports portably, and a stat is cheap.
        """
        if not self._paths:
            await asyncio.Event().wait()
        while True:
            await asyncio.sleep(_INTERVAL)
            await self.check()

    async def check(self) -> bool:
        """Check the files once and load them if they changed; return True if the new content is now in use.

        If the new content cannot be loaded, this is logged and counted once, and tried again only after
        another change.
        """
        stamp = self._look()
        if stamp == self._stamp:
            return False
        # Set before reading, so that the next check finds a change made during the reading.
        self._stamp = stamp
        before = self.pair, self.client_ca
        try:
            loaded = await asyncio.to_thread(self._load, *before)
            # If ``replace`` or ``trust`` was called meanwhile, load again with the new pair or CA.
            current = self.pair, self.client_ca
            self._current = loaded if current == before else self._load(*current)
        except ConfigError as error:
            _RELOAD_ERRORS.labels(self.name).inc()
            _log.error(
                "serving certificate not reloaded; the previous one stays in use",
                name=self.name,
                error=str(error),
            )
            return False
        _log.info("serving certificate reloaded", name=self.name)
        return True

    def _look(self) -> tuple[object, ...]:
        return tuple(map(file_stamp, self._paths))

    def _load(self, pair: KeyPair | None, client_ca: ClientCa) -> ssl.SSLContext:
        where = "certificate"
        if pair is None:
            certificate, key = self._pair_paths
            pair = KeyPair(_read(certificate), _read(key))
            where = f"certificate {certificate} with key {key}"
        loaded = _server_context(pair, client_ca, where=where)
        self.expires_at = expiry(pair.certificate).timestamp()
        """Unix time at which the certificate in use expires."""
        _EXPIRATION.labels(self.name).set(self.expires_at)
        return loaded

    def _choose(
        self, connection: ssl.SSLObject | ssl.SSLSocket, _name: str | None, _front: ssl.SSLContext
    ) -> None:
        connection.context = self._current


def server_context(pair: KeyPair) -> ssl.SSLContext:
    """Return a fixed server context for a pair in memory, which asks for no client certificates.

    Raises:
        ConfigError: the pair cannot be used.
    """
    return _server_context(pair, "", where="certificate")


def common_name(certificate: Mapping[str, Any]) -> str:
    """Return the common name of a verified certificate (``SSLSocket.getpeercert``); empty if it has none.

    If there are several, the last is returned, as in Go, because approvers of the certificate checked the
    last.
    """
    names = [pair for relative in certificate.get("subject", ()) for pair in relative]
    return next((str(value) for key, value in reversed(names) if key == "commonName"), "")


def _server_context(pair: KeyPair, client_ca: ClientCa, *, where: str) -> ssl.SSLContext:
    context = _bare_context(ask_clients=bool(client_ca))
    try:
        with as_file(pair.certificate) as certificate, as_file(pair.key) as key:
            context.load_cert_chain(certificate, key, password=no_password)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} cannot be used: {_reason(error)}") from None
    if client_ca:
        pem = client_ca if isinstance(client_ca, bytes) else _read(Path(client_ca))
        try:
            context.load_verify_locations(cadata=pem.decode("ascii", "ignore"))
        except (OSError, ValueError) as error:
            file = "" if isinstance(client_ca, bytes) else f" {client_ca}"
            raise ConfigError(f"client CA{file} cannot be used: {_reason(error)}") from None
    return context


def _bare_context(*, ask_clients: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    # aiohttp has no HTTP/2; clients that offer h2 fall back at once.
    context.set_alpn_protocols(["http/1.1"])
    if ask_clients:
        context.verify_mode = ssl.CERT_OPTIONAL
        # An intermediate CA is trusted without its root, as in a kubelet.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return str(error) or "it is not PEM"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None

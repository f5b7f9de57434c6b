"""Where one cluster is and who we are there."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from urllib.parse import urlsplit

from controller_runtime.auth.credentials import REREAD_SECONDS, Credentials
from controller_runtime.errors import ConfigError
from controller_runtime.tls.client_tls import TlsMaterial
from controller_runtime.tls.key_pairs import KeyPair


class ClusterConfig:
    """One cluster as seen by one user.

    Attributes:
        server: base URL without a trailing slash, path prefix included.
        ssl: context for TLS servers; None for plain http. Another one after our certificate has changed: read it
            after ``headers``, and make new connections for it.
        namespace: the context's namespace; empty when it names none.
        context_name: the kubeconfig context; empty in-cluster.
        proxy_url: HTTP proxy to go through; None for none.
        tls_server_name: name to verify the certificate against instead of the host; None for the host.
        source: where all this came from, for messages.
        host: the server's name or address.
        port: the server's port.
        path_prefix: the path of ``server``; empty for none.
    """

    def __init__(
        self,
        server: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        tls: TlsMaterial | None = None,
        credentials: Credentials | None = None,
        namespace: str = "",
        context_name: str = "",
        proxy_url: str | None = None,
        tls_server_name: str | None = None,
        source: str = "",
    ) -> None:
        """Set up.

        Args:
            server: an http or https URL.
            ssl_context: how to verify an https server; fixed.
            tls: instead of a context, what to make one of, now and when it changes.
            credentials: where headers come from; none by default.
            namespace: of the context.
            context_name: of the kubeconfig.
            proxy_url: HTTP proxy.
            tls_server_name: to verify in place of the host.
            source: for messages.

        Raises:
            ConfigError: the server is no URL, or the TLS material cannot be used.
        """
        self.server = server.rstrip("/")
        self.namespace = namespace
        self.context_name = context_name
        self.proxy_url = proxy_url
        self.tls_server_name = tls_server_name
        self.source = source
        self._credentials = credentials or Credentials()
        self.host, self.port, self.path_prefix = split_server(self.server, source=source)
        secure = self.server.lower().startswith("https:")
        self._tls = tls if secure else None
        self._stamp: tuple[object, ...] = self._tls.stamp() if self._tls else ()
        self._stamped_at: float | None = None
        self._identity: KeyPair | None = None
        self.ssl = self._tls.context() if self._tls else ssl_context

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Headers that authenticate a request.

        Token files and certificate files are looked at again once a minute, plugins run again before what they
        gave expires.

        Args:
            refresh: after a 401: do not trust what is remembered.

        Raises:
            ConfigError: a token file, certificate or plugin fails, and nothing usable is remembered.
        """
        headers = await self._credentials.headers(refresh=refresh)
        if self._tls is not None:
            self._renew_context(self._tls, refresh=refresh)
        return headers

    @property
    def verifies_server(self) -> bool:
        """Whether an https server has to prove who it is; true for plain http, which is a weakness of its own."""
        if self._tls is not None:
            return self._tls.verify
        return self.ssl is None or self.ssl.verify_mode is not ssl.CERT_NONE

    @property
    def has_credentials(self) -> bool:
        """Whether requests carry a token or a password."""
        return type(self._credentials) is not Credentials

    async def close(self) -> None:
        """Stop a credential plugin that runs."""
        await self._credentials.close()

    def _renew_context(self, tls: TlsMaterial, *, refresh: bool) -> None:
        identity = self._credentials.certificate
        if identity is self._identity:
            now = asyncio.get_running_loop().time()
            if self._stamped_at is not None and now - self._stamped_at < REREAD_SECONDS and not refresh:
                return
            self._stamped_at = now
            stamp = tls.stamp()
            if stamp == self._stamp:
                return
            self._stamp = stamp
        try:
            self.ssl = tls.context(identity)
        except ConfigError:
            # Half-written files are whole a moment later; what we have is good until the server says otherwise.
            if identity is not self._identity:
                raise
            self._stamp = ()
        self._identity = identity

    def __repr__(self) -> str:
        return f"<ClusterConfig {self.server} from {self.source}>"


def split_server(server: str, *, source: str) -> tuple[str, int, str]:
    """Host, port and path prefix of a server's URL.

    Raises:
        ConfigError: it is none.
    """
    where = f"{source}: " if source else ""
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{where}{server!r} is not a URL: {error}") from None
    if parts.username is not None:
        # It would be in every message that names the server, and is not sent beside other credentials.
        raise ConfigError(
            f"{where}has a name in front of the host; it belongs to username and password of the user"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"{where}{server!r} is not an http(s) URL of a server")
    return parts.hostname, port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/")

"""The address of one cluster and our credentials for it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from multidict import CIMultiDict

from controller_runtime.auth.credentials import REREAD_SECONDS, Credentials
from controller_runtime.auth.kubeconfig_file import Section
from controller_runtime.auth.proxies import split_url
from controller_runtime.errors import ConfigError
from controller_runtime.tls.client_tls import TlsMaterial
from controller_runtime.tls.pem import KeyPair

_EXCERPT = 200
"""Characters of a refused value in an error."""
USER = "Impersonate-User"
_PREFIX = "impersonate-"
_LEGAL_IN_NAMES = "!#$&'*+-.^_`|~"
"""Characters allowed in a header name besides letters and digits, without the percent sign."""


class ConnectionConfig:
    """One cluster and the user to connect as.

    Attributes:
        server: base URL without a trailing slash, including the path prefix.
        ssl: context for TLS servers; None for plain http. Replaced when a TLS file or our certificate
            changes: read it after ``headers``, and open new connections if it has changed.
        namespace: the context's namespace; empty if it has none.
        context_name: the kubeconfig context; empty in-cluster.
        proxy_url: the HTTP proxy to use; None: none.
        tls_server_name: the name to verify the certificate against; None: the host.
        source: the origin of this configuration, for messages.
        host: the server's name or address.
        port: the server's port.
        path_prefix: the path of ``server``; empty: none.
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
        """Create a configuration; the arguments that are not described here are attributes.

        For an https server, ``ssl_context`` is a fixed TLS context, or ``tls`` has the files to make it from, now and when
        they change. ``credentials`` is the source of headers; None: no credentials.

        Raises:
            ConfigError: the server is not a URL, or the TLS files cannot be used.
        """
        self.server = server.rstrip("/")
        self.namespace = namespace
        self.context_name = context_name
        self.proxy_url = proxy_url
        self.tls_server_name = tls_server_name
        self.source = source
        self._credentials = credentials or Credentials()
        self.host, self.port, self.path_prefix = split_server(self.server, source=source)
        where = f"{source}: " if source else ""
        if tls_server_name and (problem := _name_problem(tls_server_name)):
            raise ConfigError(f"{where}tls-server-name: {tls_server_name[:_EXCERPT]!r} {problem}")
        if proxy_url and (problem := _name_problem(split_url(proxy_url).hostname or "")):
            raise ConfigError(f"{where}proxy-url: its host {problem}")
        secure = self.server.lower().startswith("https:")
        self._tls = tls if secure else None
        self._stamp: tuple[object, ...] = self._tls.stamp() if self._tls else ()
        self._stamped_at: float | None = None
        self._identity: KeyPair | None = None
        self.ssl = self._tls.context() if self._tls else ssl_context

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return the headers that authenticate a request.

        Token and certificate files are checked for changes once a minute. Plugins run again before their
        credentials expire.

        Args:
            refresh: whether to ignore cached credentials, after a 401.

        Raises:
            ConfigError: a token file, certificate or plugin fails, and no usable credentials are cached.
        """
        headers = await self._credentials.headers(refresh=refresh)
        if self._tls is not None:
            self._renew_context(self._tls, refresh=refresh)
        return headers

    @property
    def verifies_server(self) -> bool:
        """Report whether an https server's certificate is verified; True for plain http."""
        if self._tls is not None:
            return self._tls.verify
        return self.ssl is None or self.ssl.verify_mode is not ssl.CERT_NONE

    @property
    def has_credentials(self) -> bool:
        """Report whether requests may carry a token or a password."""
        return type(self._credentials) is not Credentials

    async def close(self) -> None:
        """Stop a running credential plugin."""
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
            # The files may be half-written: keep the current context and read them again later. A new
            # certificate from a plugin is complete, so its error is raised.
            if identity is not self._identity:
                raise
            self._stamp = ()
        self._identity = identity

    def __repr__(self) -> str:
        return f"<ConnectionConfig {self.server} from {self.source}>"


def split_server(server: str, *, source: str) -> tuple[str, int, str]:
    """Return host, port and path prefix of a server's URL.

    Raises:
        ConfigError: ``server`` is not the http(s) URL of a server.
    """
    where = f"{source}: " if source else ""
    try:
        parts = urlsplit(server)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"{where}{server!r} is not a URL: {error}") from None
    if parts.username is not None:
        # A user name would appear in every message with the server's URL, and is not sent if there are other
        # credentials.
        raise ConfigError(
            f"{where}has a name in front of the host; it belongs to username and password of the user"
        )
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(f"{where}{server!r} is not an http(s) URL of a server")
    if problem := _name_problem(parts.hostname):
        raise ConfigError(f"{where}{server[:_EXCERPT]!r}: its host {problem}")
    return parts.hostname, port or (443 if parts.scheme == "https" else 80), parts.path.rstrip("/")


def _name_problem(name: str) -> str:
    """Return why the resolver or TLS cannot use a name; empty: they can.

    Both raise errors that are not network errors for such names, which would end a process with many clusters.
    """
    if name != "".join(name.split()) or "\\" in name or not name.isprintable():
        return "has characters that no host name has"
    try:
        name.encode("idna")
    except UnicodeError:
        return "is not a host name: a part between two dots is empty, too long, or not encodable"
    return ""


class Impersonating(Credentials):
    """Credentials of one user with the headers to impersonate another user."""

    def __init__(self, own: Credentials, headers: Mapping[str, str]) -> None:
        """Create credentials with headers from ``headers_of``; our user must be allowed to impersonate."""
        self._own = own
        self._impersonation = headers

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Return our own headers and those of the impersonation."""
        together = CIMultiDict(await self._own.headers(refresh=refresh))
        self.certificate = self._own.certificate
        together.extend(self._impersonation)
        return together

    async def close(self) -> None:
        """Stop subprocesses of our own credentials."""
        await self._own.close()


def headers_of(user: Section) -> Mapping[str, str]:
    """Return the headers of a user's ``as``, ``as-uid``, ``as-groups`` and ``as-user-extra``, if any.

    Raises:
        ConfigError: a field is invalid, or ``as`` is missing.
    """
    headers: CIMultiDict[str] = CIMultiDict()
    name, uid, groups = user.text("as"), user.text("as-uid"), _texts(user, "as-groups")
    extra = user.section("as-user-extra")
    if name:
        headers.add(USER, _value(name, user.at("as")))
    elif uid or groups or extra is not None:
        raise ConfigError(f"{user.at('as')}: is missing; as-uid, as-groups and as-user-extra need a user")
    if uid:
        headers.add("Impersonate-Uid", _value(uid, user.at("as-uid")))
    for group in groups:
        headers.add("Impersonate-Group", _value(group, user.at("as-groups")))
    if extra is not None:
        for key in extra.values:
            header = f"Impersonate-Extra-{quote(str(key), safe=_LEGAL_IN_NAMES)}"
            for value in _texts(extra, key):
                headers.add(header, _value(value, extra.at(key)))
    return headers


def merged(ours: Mapping[str, str], request: Mapping[str, str] | None) -> Mapping[str, str]:
    """Return our headers, overridden by a request's. If those impersonate, our impersonation headers are removed."""
    if not request:
        return ours
    together = CIMultiDict(ours)
    if USER in request:
        for name in [name for name in together if name.lower().startswith(_PREFIX)]:
            together.popall(name, None)
    together.update(request)
    return together


def _texts(section: Section, name: str) -> list[str]:
    found = section.values.get(name) or []
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise ConfigError(f"{section.at(name)}: must be a list of strings")
    return found


def _value(text: str, where: str) -> str:
    if not text.isprintable():
        raise ConfigError(f"{where}: {text!r} has characters that an HTTP header must not have")
    return text

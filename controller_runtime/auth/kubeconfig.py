"""Loads a cluster's address and credentials from kubeconfigs, a service account or the environment.

The result is a ``ConnectionConfig``: a URL, a TLS context and headers that are always current.
"""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlsplit

from multidict import CIMultiDict

from controller_runtime.auth import kubeconfig_file
from controller_runtime.auth.credentials import (
    API_VERSIONS,
    REREAD_SECONDS,
    AuthProvider,
    Credentials,
    ExecCredentials,
    Plugin,
    StaticCredentials,
    TokenFile,
    bearer,
    has_terminal,
    token_problem,
)
from controller_runtime.auth.kubeconfig_file import Context, Section
from controller_runtime.auth.proxies import proxy_for, split_url, url_problem
from controller_runtime.errors import ConfigError
from controller_runtime.tls.pem import KeyPair, TlsMaterial

__all__ = ["ConnectionConfig", "Credentials", "load"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
EXEC_EXTENSION = "client.authentication.k8s.io/exec"
"""Name of a cluster's extension with the settings for its credential plugin."""
_EXCERPT = 200
"""Characters of a refused value in an error."""
USER = "Impersonate-User"
_PREFIX = "impersonate-"
_LEGAL_IN_NAMES = "!#$&'*+-.^_`|~"
"""Characters allowed in a header name besides letters and digits, without the percent sign."""


async def load(
    path: str = "",
    *,
    context: str = "",
    in_cluster: bool = True,
    server: str = "",
    impersonate: Mapping[str, Any] = MappingProxyType({}),
) -> ConnectionConfig:
    """Return the configuration of one cluster; run its credential plugin if it has one.

    Args:
        path: a kubeconfig, or several as in $KUBECONFIG. If given, there is no fallback, because a fallback
            could be the upper cluster instead of a lower one. Empty: found as kubectl finds it.
        context: the kubeconfig's context; empty: its current one.
        in_cluster: whether to use the pod's service account if there is no path, $KUBECONFIG or
            ~/.kube/config.
        server: overrides the server's URL, as kubectl's ``--server``; empty: that of the kubeconfig.
        impersonate: fields ``as``, ``as-groups`` and ``as-uid``. Each replaces that of the kubeconfig's user, as kubectl's
            flags do.

    Raises:
        ConfigError: names the file, the field and what is wrong with it.
    """
    found = _find(path, context=context)
    flags = Section("flags", impersonate, Path())
    if found is not None:
        user = replace(found.user, values={**found.user.values, **impersonate})
        config = _from_context(found, server=server, impersonation=headers_of(user))
    elif in_cluster and os.environ.get("KUBERNETES_SERVICE_HOST"):
        config = _from_pod(server=server, impersonation=headers_of(flags))
    elif server and not context:
        config = ConnectionConfig(
            server,
            tls=TlsMaterial(source="--server"),
            proxy_url=proxy_for(server, environment=os.environ),
            source="--server",
        )
    else:
        raise ConfigError(
            "no kubeconfig: give one by flag or $KUBECONFIG, put it at ~/.kube/config, or run in a pod"
        )
    try:
        await config.headers()
    except BaseException:
        await config.close()  # a plugin continues when its caller is cancelled, until its time-out
        raise
    return config


def _find(path: str, *, context: str) -> Context | None:
    if path:
        return kubeconfig_file.read(path.split(os.pathsep), context=context, must_exist=True)
    listed = os.environ.get("KUBECONFIG")
    if listed:
        found = kubeconfig_file.read(listed.split(os.pathsep), context=context)
        if found is None:
            raise ConfigError(f"$KUBECONFIG: {listed}: no such file")
        return found
    return kubeconfig_file.read(["~/.kube/config"], context=context)


def _from_pod(*, server: str, impersonation: Mapping[str, str]) -> ConnectionConfig:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    url = server or (f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")
    authority, namespace = _ACCOUNT / "ca.crt", _ACCOUNT / "namespace"
    if not (_ACCOUNT / "token").exists():
        raise ConfigError(
            f"in-cluster: {_ACCOUNT / 'token'} does not exist; does the pod mount its service account token?"
        )
    credentials = TokenFile(_ACCOUNT / "token", source="in-cluster")
    return ConnectionConfig(
        url,
        tls=TlsMaterial(source="in-cluster", authority=authority if authority.exists() else None),
        credentials=Impersonating(credentials, impersonation) if impersonation else credentials,
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "",
        proxy_url=proxy_for(url, environment=os.environ),
        source="in-cluster",
    )


def _from_context(context: Context, *, server: str, impersonation: Mapping[str, str]) -> ConnectionConfig:
    cluster, user = context.cluster, context.user
    url = server or cluster.text("server")
    if not url:
        raise ConfigError(f"{cluster.at('server')}: is missing")
    proxy = cluster.text("proxy-url")
    if proxy and (problem := url_problem(proxy)):
        raise ConfigError(f"{cluster.at('proxy-url')}: {problem}")
    split_server(url, source="--server" if server else cluster.at("server"))
    certificate, key = user.material("client-certificate"), user.material("client-key")
    if (certificate is None) != (key is None):
        missing = "client-certificate" if certificate is None else "client-key"
        raise ConfigError(f"{user.at(missing)}: is missing; set both the client certificate and its key")
    authority, insecure = cluster.material("certificate-authority"), cluster.flag("insecure-skip-tls-verify")
    if insecure and authority is not None:
        raise ConfigError(
            f"{cluster.at('insecure-skip-tls-verify')}: certificate-authority is set, too; remove one of them"
        )
    credentials = _credentials(context, url=url)
    return ConnectionConfig(
        url,
        tls=TlsMaterial(
            source=f"{context.source}: context {context.name}",
            authority=authority,
            certificate=certificate,
            key=key,
            verify=not insecure,
        ),
        credentials=Impersonating(credentials, impersonation) if impersonation else credentials,
        namespace=context.namespace,
        context_name=context.name,
        proxy_url=proxy or proxy_for(url, environment=os.environ),
        tls_server_name=cluster.text("tls-server-name") or None,
        source=context.source,
    )


def _credentials(context: Context, *, url: str) -> Credentials:
    user = context.user
    token, token_file = user.text("token"), user.path("tokenFile")
    if token and (problem := token_problem(token)):
        raise ConfigError(f"{user.at('token')}: {problem}")
    if token_file is not None:
        return TokenFile(token_file, source=user.at("tokenFile"), fallback=token)
    if token:
        return StaticCredentials(bearer(token))
    name = user.text("username")
    if name:
        pair = base64.b64encode(f"{name}:{user.text('password')}".encode()).decode()
        return StaticCredentials({"Authorization": f"Basic {pair}"})
    plugin = user.section("exec")
    if plugin is not None:
        return ExecCredentials(_plugin(plugin, user=user, cluster=context.cluster, url=url))
    if user.section("auth-provider") is not None:
        return AuthProvider(user)
    return Credentials()


def _plugin(plugin: Section, *, user: Section, cluster: Section, url: str) -> Plugin:
    command = plugin.text("command")
    if not command:
        raise ConfigError(f"{plugin.at('command')}: is missing")
    version = plugin.text("apiVersion")
    if version not in API_VERSIONS:
        known = ", ".join(sorted(API_VERSIONS))
        raise ConfigError(f"{plugin.at('apiVersion')}: {version!r} is not supported (known: {known})")
    mode = plugin.text("interactiveMode") or "IfAvailable"
    if mode == "Always" and not has_terminal(sys.stdin):
        raise ConfigError(
            f"{plugin.at('interactiveMode')}: Always needs a terminal, and standard input is not a terminal"
        )
    args = plugin.values.get("args") or []
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        raise ConfigError(f"{plugin.at('args')}: must be a list of strings")
    if os.sep in command:
        command = str(plugin.directory / command)
    return Plugin(
        command=command,
        source=user.where,
        args=args,
        env={item.text("name"): item.text("value") for item in plugin.sections("env")},
        api_version=version,
        interactive_mode=mode,
        cluster=_cluster_info(cluster, url=url) if plugin.flag("provideClusterInfo") else None,
        install_hint=plugin.text("installHint"),
    )


def _cluster_info(cluster: Section, *, url: str) -> dict[str, Any]:
    authority = cluster.material("certificate-authority")
    try:
        pem = authority.read_bytes() if isinstance(authority, Path) else authority
    except OSError as error:
        raise ConfigError(
            f"{cluster.at('certificate-authority')}: {error.filename}: {error.strerror}"
        ) from None
    # The first of equal names wins, as everywhere in kubeconfigs.
    extensions = (item for item in cluster.sections("extensions") if item.text("name") == EXEC_EXTENSION)
    extension = next(extensions, None)
    info: dict[str, Any] = {
        "server": url,
        "tls-server-name": cluster.text("tls-server-name"),
        "insecure-skip-tls-verify": cluster.flag("insecure-skip-tls-verify"),
        "certificate-authority-data": base64.b64encode(pem).decode() if pem else "",
        "proxy-url": cluster.text("proxy-url"),
        "config": extension.values.get("extension") if extension is not None else None,
    }
    return {name: value for name, value in info.items() if value}


class ConnectionConfig:
    """One cluster and the user to connect as.

    Attributes:
        server: base URL without a trailing slash, including the path prefix.
        ssl: context for TLS servers; None for plain http. Replaced when a TLS file or our certificate
            changes: read it after ``headers``, and open new connections if it has changed.
        namespace: the context's namespace; empty if it has none.
        context_name: the kubeconfig context; empty in-cluster.
        proxy_url: the proxy to use (http, https or socks5); None: none.
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
        """Stop the subprocesses of the impersonating user's credentials."""
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

"""Where a cluster is and how we prove who we are: the one module that knows kubernetes-asyncio.

kubernetes-asyncio parses kubeconfigs and runs credential plugins well enough; importing it costs most of a
second and 25 MB of generated models, so it is imported when the first kubeconfig is loaded, not before. What
leaves this module is ``ClusterConfig``: a URL, a TLS context and headers that are always fresh.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from controller_runtime.errors import ConfigError

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_AGE = 60.0
"""Seconds for which a token is used before its source is looked at again (files rotate, plugins expire)."""


class ClusterConfig:
    """One cluster as seen by one user.

    Attributes:
        server: base URL without a trailing slash, path prefix included.
        ssl: context for TLS servers; None for plain http.
        namespace: the context's namespace; empty when it names none.
        context_name: the kubeconfig context; empty in-cluster.
        proxy_url: HTTP proxy to go through; None for none.
        tls_server_name: name to verify the certificate against instead of the host; None for the host.
        source: where all this came from, for messages.
    """

    def __init__(
        self,
        server: str,
        *,
        ssl_context: ssl.SSLContext | None = None,
        credentials: Credentials | None = None,
        namespace: str = "",
        context_name: str = "",
        proxy_url: str | None = None,
        tls_server_name: str | None = None,
        source: str = "",
    ) -> None:
        self.server = server.rstrip("/")
        self.ssl = ssl_context
        self.namespace = namespace
        self.context_name = context_name
        self.proxy_url = proxy_url
        self.tls_server_name = tls_server_name
        self.source = source
        self._credentials = credentials or Credentials()
        parts = urlsplit(self.server)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ConfigError(f"{source}: server {server!r} is not an http(s) URL")
        self.host: str = parts.hostname
        self.port: int = parts.port or (443 if parts.scheme == "https" else 80)
        self.path_prefix: str = parts.path

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """Headers that authenticate a request. ``refresh`` after a 401: do not trust what is remembered.

        Raises:
            ConfigError: a token file or plugin fails.
        """
        return await self._credentials.headers(refresh=refresh)

    def __repr__(self) -> str:
        return f"<ClusterConfig {self.server} from {self.source}>"


class Credentials:
    """A source of authenticating headers; this one has none (client certificates need none)."""

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """The headers to send now."""
        return {}


class _FileToken(Credentials):
    """A bearer token in a file that somebody rotates."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._headers: dict[str, str] = {}
        self._read_at: float | None = None

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """The headers to send now; the file is read again once a minute."""
        now = asyncio.get_running_loop().time()
        if refresh or self._read_at is None or now - self._read_at > _TOKEN_AGE:
            try:
                token = self._path.read_text(encoding="utf-8").strip()
            except OSError as error:
                if not self._headers:
                    raise ConfigError(f"token file {self._path}: {error.strerror}") from None
            else:
                self._headers = {"Authorization": f"Bearer {token}"}
            self._read_at = now
        return self._headers


class _LoaderCredentials(Credentials):
    """Whatever the kubeconfig's user says, through kubernetes-asyncio's loader."""

    def __init__(self, loader: Any, context: ssl.SSLContext | None, *, source: str) -> None:
        self._loader = loader
        self._context = context
        self._source = source
        user = loader._user.value if loader._user is not None else {}  # noqa: SLF001 - not public, and needed
        self._has_plugin = "exec" in user or "auth-provider" in user
        self._changes = self._has_plugin or "tokenFile" in user
        self._headers: dict[str, str] | None = None
        self._loaded_at = 0.0
        self._lock = asyncio.Lock()

    async def headers(self, *, refresh: bool = False) -> Mapping[str, str]:
        """The headers to send now; sources that change are asked again once a minute, one caller at a time."""
        now = asyncio.get_running_loop().time()
        stale = self._headers is None or (self._changes and (refresh or now - self._loaded_at > _TOKEN_AGE))
        if stale:
            async with self._lock:
                if self._headers is None or refresh or self._loaded_at < now - _TOKEN_AGE:
                    await self._load(force=refresh)
                    self._loaded_at = asyncio.get_running_loop().time()
        return self._headers or {}

    async def _load(self, *, force: bool) -> None:
        loader = self._loader
        if force and hasattr(loader, "exec_plugin_expiry"):
            del loader.exec_plugin_expiry
        # A plugin that names no expiry is good until the server refuses what it gave, as in client-go.
        if (
            self._headers is not None
            and self._has_plugin
            and not force
            and not hasattr(loader, "exec_plugin_expiry")
        ):
            return
        try:
            await loader._load_authentication()  # noqa: SLF001 - the loader's only way to renew
        except Exception as error:
            if self._headers is not None and not force:
                return  # what we have may still be good; the server will tell
            raise ConfigError(f"{self._source}: credentials: {_one_line(error)}") from error
        certificate = getattr(loader, "cert_file", None)
        if self._has_plugin and certificate and self._context is not None:
            self._context.load_cert_chain(certificate, getattr(loader, "key_file", None))
        token = getattr(loader, "token", "")
        self._headers = {"Authorization": token} if token else {}


async def load(
    path: str | None = None, *, context: str | None = None, in_cluster: bool = True, server: str | None = None
) -> ClusterConfig:
    """Find and read the configuration of one cluster.

    Args:
        path: a kubeconfig. When given, nothing else is tried: a lower cluster must never become the upper one
            by falling back.
        context: the kubeconfig's context; None: its current one.
        in_cluster: without a path, and without $KUBECONFIG and ~/.kube/config, use the pod's own account.
        server: overrides the server's URL, as kubectl's ``--server``.

    Raises:
        ConfigError: names the file and what is wrong with it.
    """
    paths = path or os.environ.get("KUBECONFIG") or ""
    if not paths:
        home = Path.home() / ".kube" / "config"
        if home.exists():
            paths = str(home)
    if paths:
        return await _from_files(paths, context=context, server=server, explicit=bool(path))
    if in_cluster and os.environ.get("KUBERNETES_SERVICE_HOST"):
        return _from_pod(server=server)
    raise ConfigError(
        "no kubeconfig: give one by flag or $KUBECONFIG, put it at ~/.kube/config, or run in a pod"
    )


def _from_pod(*, server: str | None) -> ClusterConfig:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
    authority = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    ca, token = _ACCOUNT / "ca.crt", _ACCOUNT / "token"
    if not token.exists():
        raise ConfigError(f"in-cluster: {token} is not there; does the pod mount its service account token?")
    namespace = _ACCOUNT / "namespace"
    return ClusterConfig(
        server or f"https://{authority}",
        ssl_context=_tls_context(ca_file=str(ca) if ca.exists() else None, source="in-cluster"),
        credentials=_FileToken(token),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "",
        source="in-cluster",
    )


async def _from_files(
    paths: str, *, context: str | None, server: str | None, explicit: bool
) -> ClusterConfig:
    for file in paths.split(os.pathsep):
        if explicit and not Path(file).expanduser().is_file():
            raise ConfigError(f"kubeconfig {file}: no such file")
    loader, configuration = await _parse(paths, context=context)
    source = f"kubeconfig {paths}"
    url = server or configuration.host
    secure = url.startswith("https")
    tls = None
    if secure:
        tls = _tls_context(
            ca_file=configuration.ssl_ca_cert,
            certificate=configuration.cert_file,
            key=configuration.key_file,
            verify=configuration.verify_ssl,
            source=source,
        )
    current = loader.current_context or {}
    config = ClusterConfig(
        url,
        ssl_context=tls,
        credentials=_LoaderCredentials(loader, tls, source=source),
        namespace=str((current.get("context") or {}).get("namespace") or ""),
        context_name=str(current.get("name") or ""),
        proxy_url=getattr(configuration, "proxy", None),
        tls_server_name=getattr(configuration, "tls_server_name", None),
        source=source,
    )
    await config.headers()
    return config


async def _parse(paths: str, *, context: str | None) -> tuple[Any, Any]:
    """kubernetes-asyncio's loader and configuration for the files, every failure as one clear line."""
    from kubernetes_asyncio.client import Configuration  # noqa: PLC0415 - heavy; see the module's docstring
    from kubernetes_asyncio.config import kube_config  # noqa: PLC0415

    expanded = os.pathsep.join(str(Path(file).expanduser()) for file in paths.split(os.pathsep))
    try:
        merged = kube_config.KubeConfigMerger(expanded).config
    except Exception as error:  # noqa: BLE001 - the parser raises whatever it meets
        raise ConfigError(f"kubeconfig {paths}: cannot be read: {_one_line(error)}") from None
    if merged is None:
        raise ConfigError(f"kubeconfig {paths}: no such file, or empty")
    try:
        loader = kube_config.KubeConfigLoader(
            config_dict=merged, active_context=context or None, config_base_path=None
        )
        loader._load_cluster_info()  # noqa: SLF001 - load_and_set would run plugins, whose errors are ours to word
        configuration = Configuration()
        if not getattr(loader, "host", ""):
            raise ConfigError(f"kubeconfig {paths}: the cluster has no server")
        loader._set_config(configuration)  # noqa: SLF001
    except ConfigError:
        raise
    except Exception as error:  # noqa: BLE001 - the parser raises whatever it meets
        asked = f" (context {context})" if context else ""
        raise ConfigError(f"kubeconfig {paths}{asked}: {_one_line(error)}") from None
    return loader, configuration


def _tls_context(
    *,
    source: str,
    ca_file: str | None = None,
    certificate: str | None = None,
    key: str | None = None,
    verify: bool = True,
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=ca_file)
        if certificate:
            context.load_cert_chain(certificate, key)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"{source}: TLS material: {_one_line(error)}") from None
    # Kubernetes' own CAs are often made without the extensions that Python >= 3.13 insists on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

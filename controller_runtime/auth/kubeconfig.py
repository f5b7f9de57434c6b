"""Loads a cluster's address and credentials from kubeconfigs, a service account or the environment.

The result is a ``ConnectionConfig``: a URL, a TLS context and headers that are always current.
"""

from __future__ import annotations

import base64
import os
from pathlib import Path
from typing import Any

from controller_runtime.auth import kubeconfig_file
from controller_runtime.auth.connection import ConnectionConfig, Impersonating, split_server
from controller_runtime.auth.connection import headers_of as impersonation_headers
from controller_runtime.auth.credentials import (
    API_VERSIONS,
    AuthProvider,
    Credentials,
    ExecCredentials,
    Plugin,
    StaticCredentials,
    TokenFile,
    bearer,
    token_problem,
)
from controller_runtime.auth.kubeconfig_file import Context, Section
from controller_runtime.auth.proxies import proxy_for, split_url, without_password
from controller_runtime.errors import ConfigError
from controller_runtime.tls.client_tls import TlsMaterial

__all__ = ["ConnectionConfig", "Credentials", "load"]

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_EXEC_EXTENSION = "client.authentication.k8s.io/exec"


async def load(
    path: str = "", *, context: str = "", in_cluster: bool = True, server: str = ""
) -> ConnectionConfig:
    """Return the configuration of one cluster; run its credential plugin if it has one.

    Args:
        path: a kubeconfig, or several as in $KUBECONFIG. If given, there is no fallback, because a fallback
            could be the upper cluster instead of a lower one. Empty: found as kubectl finds it.
        context: the kubeconfig's context; empty: its current one.
        in_cluster: whether to use the pod's service account if there is no path, $KUBECONFIG or
            ~/.kube/config.
        server: overrides the server's URL, as kubectl's ``--server``; empty: that of the kubeconfig.

    Raises:
        ConfigError: names the file, the field and what is wrong with it.
    """
    found = _find(path, context=context)
    if found is not None:
        config = _from_context(found, server=server)
    elif in_cluster and os.environ.get("KUBERNETES_SERVICE_HOST"):
        config = _from_pod(server=server)
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


def _from_pod(*, server: str) -> ConnectionConfig:
    host = os.environ["KUBERNETES_SERVICE_HOST"]
    port = os.environ.get("KUBERNETES_SERVICE_PORT") or "443"
    url = server or (f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")
    authority, namespace = _ACCOUNT / "ca.crt", _ACCOUNT / "namespace"
    if not (_ACCOUNT / "token").exists():
        raise ConfigError(
            f"in-cluster: {_ACCOUNT / 'token'} does not exist; does the pod mount its service account token?"
        )
    return ConnectionConfig(
        url,
        tls=TlsMaterial(source="in-cluster", authority=authority if authority.exists() else None),
        credentials=TokenFile(_ACCOUNT / "token", source="in-cluster"),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.exists() else "",
        proxy_url=proxy_for(url, environment=os.environ),
        source="in-cluster",
    )


def _from_context(context: Context, *, server: str) -> ConnectionConfig:
    cluster, user = context.cluster, context.user
    url = server or cluster.text("server")
    if not url:
        raise ConfigError(f"{cluster.at('server')}: is missing")
    proxy = cluster.text("proxy-url")
    if proxy and split_url(proxy).scheme not in {"http", "https"}:
        raise ConfigError(
            f"{cluster.at('proxy-url')}: {without_password(proxy)!r} is not an http(s) URL; others are not supported"
        )
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
    credentials, impersonation = _credentials(context, url=url), impersonation_headers(user)
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
    if plugin.text("interactiveMode") == "Always":
        raise ConfigError(
            f"{plugin.at('interactiveMode')}: Always is not supported, because this program has no terminal for it"
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
    extensions = (item for item in cluster.sections("extensions") if item.text("name") == _EXEC_EXTENSION)
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

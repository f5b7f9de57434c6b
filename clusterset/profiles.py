"""Decides which ClusterProfiles become lower clusters, and with which kubeconfigs. No IO.

Source: cluster-inventory-api v1alpha1 ``ClusterProfileStatus``; KEP-5339.

The file with the credential plugins has the format of the cluster inventory's library. It belongs to the administrator of
this process. It is the only source of commands, arguments and environment variables.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec

from clusterset.config import LABEL, ClusterProfiles
from controller_runtime.apimachinery.decoding import ConfigStruct, convert, decode_yaml
from controller_runtime.auth.credentials import API_VERSIONS
from controller_runtime.auth.kubeconfig import EXEC_EXTENSION, split_server
from controller_runtime.errors import ConfigError
from controller_runtime.objects import Object
from controller_runtime.process.flags import read_text

_LABEL = re.compile(LABEL)
_LONGEST_NAME = 52
"""Maximum characters of a cluster's name: RFC 5280 limits the common name ``system:node:NAME`` to 64."""
_LARGEST = 64 * 1024
"""Maximum bytes of an access provider's ``cluster`` as JSON. The plugin gets it in one environment variable, which Linux limits to 128 KiB."""
_TEXTS = ("server", "certificate-authority-data", "tls-server-name", "proxy-url")
"""Fields of a ClusterProfile's ``cluster`` that are used, all texts."""
_REFUSED = ("insecure-skip-tls-verify", "certificate-authority")
"""Fields that a ClusterProfile must not set: the first sends credentials to a server that is not verified, the second reads a
file of this process."""
CLUSTERS_PER_PROCESS = 500
"""Maximum number of lower clusters, because each has watches and caches."""
_SETTING = "clusterProfiles.providersFile"


@dataclass(frozen=True, slots=True)
class Selection:
    """The result of ``select``.

    Attributes:
        kubeconfigs: name of the lower cluster → kubeconfig as JSON.
        refused: key of the ClusterProfile → why it is not used.
    """

    kubeconfigs: Mapping[str, bytes]
    refused: Mapping[str, str]


def select(
    profiles: Iterable[Object],
    providers: Sequence[Provider],
    settings: ClusterProfiles,
    *,
    taken: Collection[str] = (),
) -> Selection:
    """Return the lower clusters of the ClusterProfiles that can be used, and why the others are refused.

    Nothing in a ClusterProfile raises an error: a ClusterProfile that cannot be used is refused, and the others are used.

    Providers are in order of preference. ``taken`` has the names of clusters and virtual nodes in the configuration file.
    """
    kubeconfigs: dict[str, bytes] = {}
    refused: dict[str, str] = {}
    for profile in sorted(profiles, key=lambda profile: profile.key):
        name = settings.name_prefix + profile.name
        try:
            _check_name(profile.name, name, settings, taken)
            if len(kubeconfigs) + len(taken) >= CLUSTERS_PER_PROCESS:
                raise ConfigError(f"one process has at most {CLUSTERS_PER_PROCESS} lower clusters")
            kubeconfigs[name] = _kubeconfig(profile, name, providers)
        except ConfigError as error:
            refused[profile.key] = str(error)
    return Selection(kubeconfigs, refused)


def _check_name(own: str, name: str, settings: ClusterProfiles, taken: Collection[str]) -> None:
    if settings.names and own not in settings.names:
        raise ConfigError("clusterProfiles.names does not contain its name: add the name there")
    if not _LABEL.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise ConfigError(
            f"the name {name!r} of its lower cluster is not a DNS label of at most {_LONGEST_NAME} characters: use a shorter "
            "clusterProfiles.namePrefix, or rename the ClusterProfile"
        )
    if name in taken:
        raise ConfigError(
            f"the configuration file already has a lower cluster or virtual node with the name {name}: rename one of them, or "
            "change clusterProfiles.namePrefix"
        )


def _kubeconfig(profile: Object, name: str, providers: Sequence[Provider]) -> bytes:
    try:
        status = profile.status
        provider, cluster = _accessor(status if isinstance(status, dict) else {}, providers)
        if len(msgspec.json.encode(cluster)) > _LARGEST:
            raise ConfigError(f"{_at(provider)}: has more than {_LARGEST:,} bytes")
        return msgspec.json.encode(_document(name, provider, _checked(_at(provider), cluster)))
    except (
        ValueError,
        OverflowError,
        RecursionError,
        TypeError,
    ) as error:  # a number or text that is no valid JSON
        raise ConfigError(f"status: cannot be read: {' '.join(str(error).split())[:200]}") from None


def _at(provider: Provider) -> str:
    return f"status.accessProviders[name={provider.name}].cluster"


def _accessor(status: Mapping[str, Any], providers: Sequence[Provider]) -> tuple[Provider, dict[str, Any]]:
    """Return the first configured provider that a ClusterProfile names, and the ``cluster`` of its entry."""
    offered: dict[str, Any] = {}
    for field in (
        "credentialProviders",
        "accessProviders",
    ):  # the first is deprecated; the second overrides it
        entries = status.get(field)
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and isinstance(entry.get("name"), str):
                offered[entry["name"]] = entry.get("cluster")
    for provider in providers:
        if provider.name in offered:
            cluster = offered[provider.name]
            if not isinstance(cluster, dict):
                raise ConfigError(f"{_at(provider)}: must be a mapping")
            return provider, cluster
    known = ", ".join(provider.name for provider in providers) or "none"
    raise ConfigError(f"status.accessProviders: names no provider of clusterProfiles (configured: {known})")


def _checked(where: str, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a ClusterProfile's ``cluster`` that are used."""
    for field in _REFUSED:
        if cluster.get(field):
            raise ConfigError(f"{where}.{field}: is not accepted from a ClusterProfile")
    for field in _TEXTS:
        if not isinstance(cluster.get(field) or "", str):
            raise ConfigError(f"{where}.{field}: must be a string")
    used: dict[str, Any] = {field: cluster[field] for field in _TEXTS if cluster.get(field)}
    server = used.get("server", "")
    if not server.lower().startswith("https://"):
        raise ConfigError(f"{where}.server: {server[:200]!r} is not an https URL")
    split_server(server, source=f"{where}.server")
    try:
        base64.b64decode("".join(used.get("certificate-authority-data", "").split()), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{where}.certificate-authority-data: is not base64") from None
    extensions = cluster.get("extensions")
    for item in extensions if isinstance(extensions, list) else ():
        if isinstance(item, dict) and item.get("name") == EXEC_EXTENSION:
            used["extensions"] = [{"name": EXEC_EXTENSION, "extension": item.get("extension")}]
            break
    return used


def _document(name: str, provider: Provider, cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Return a kubeconfig whose user is the provider's plugin."""
    plugin = {**msgspec.to_builtins(provider.exec_config), "apiVersion": provider.exec_config.api_version}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": name,
        "clusters": [{"name": name, "cluster": cluster}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": provider.name}}],
        "users": [{"name": provider.name, "user": {"exec": plugin}}],
    }


class EnvVar(ConfigStruct):
    """An environment variable of a plugin."""

    name: str
    value: str = ""


class ExecConfig(ConfigStruct):
    """A plugin, with the fields of ``users[].user.exec`` of a kubeconfig."""

    command: str
    api_version: str = "client.authentication.k8s.io/v1"
    args: list[str] | None = None
    env: list[EnvVar] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: Literal["Never", "IfAvailable", ""] = ""


class Provider(ConfigStruct):
    """How to get credentials for the ClusterProfiles that name this provider."""

    name: str
    exec_config: ExecConfig
    # The format lets a ClusterProfile add arguments and variables to the command. That is refused, see the module's docstring.
    profile_sourced_cli_args_policy: Literal["Ignore", ""] = ""
    profile_sourced_env_vars_policy: Literal["Ignore", ""] = ""


class _File(ConfigStruct):
    providers: list[Provider]


def load_providers(path: str) -> list[Provider]:
    """Return the providers of a file, in order of preference.

    A command with a slash is relative to the file's directory, as in a kubeconfig.

    Raises:
        ConfigError: the file cannot be read or is invalid; the error names file and field.
    """
    try:
        document: Any = decode_yaml(read_text(_SETTING, path))
        found = convert(document, _File).providers
    except ValueError as error:
        raise ConfigError(f"{_SETTING}: {path}: {error}") from None
    seen: set[str] = set()
    for position, provider in enumerate(found):
        where = f"{_SETTING}: {path}: providers[{position}]"
        if not provider.name:
            raise ConfigError(f"{where}.name: is empty")
        if provider.name in seen:
            raise ConfigError(f"{where}.name: {provider.name!r} is there twice")
        seen.add(provider.name)
        plugin = provider.exec_config
        if not plugin.command:
            raise ConfigError(f"{where}.execConfig.command: is empty")
        if plugin.api_version not in API_VERSIONS:
            known = ", ".join(sorted(API_VERSIONS))
            raise ConfigError(
                f"{where}.execConfig.apiVersion: {plugin.api_version!r} is not supported (known: {known})"
            )
        if os.sep in plugin.command:
            plugin.command = str(Path(path).absolute().parent / plugin.command)
    return found

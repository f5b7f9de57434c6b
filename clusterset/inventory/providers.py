"""Reads the file with the credential plugins, in the format of the cluster inventory's library (KEP-5339).

The file belongs to the administrator of this process. It is the only source of commands, arguments and environment variables.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from controller_runtime.apimachinery.decoding import ConfigStruct, convert, decode_yaml
from controller_runtime.auth.credentials import API_VERSIONS
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import read_text

_SETTING = "clusterProfiles.providersFile"


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


def load(path: str) -> list[Provider]:
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

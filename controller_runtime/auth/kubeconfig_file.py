"""Finds, merges and reads kubeconfig files as kubectl does: the first file that sets a value wins.

Source: client-go's tools/clientcmd. Paths inside a file are relative to that file.
"""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controller_runtime.apimachinery.decoding import decode_yaml, file_text
from controller_runtime.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping in a kubeconfig with its location, for messages and relative paths.

    Attributes:
        where: such as ``kubeconfig /home/me/.kube/config: users[name=me].user``.
        values: the mapping.
        directory: the file's directory.
    """

    where: str
    values: Mapping[str, Any]
    directory: Path

    def at(self, name: str) -> str:
        """Return the location of a field, for messages."""
        return f"{self.where}{' ' if self.where.endswith(':') else '.'}{name}"

    def text(self, name: str) -> str:
        """Return a string field; empty if absent.

        Raises:
            ConfigError: the field is neither a string nor an integer.
        """
        value = self.values.get(name)
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)  # a password or token of digits only, written without quotes
        raise ConfigError(f"{self.at(name)}: must be a string")

    def flag(self, name: str) -> bool:
        """Return a boolean field; False if absent.

        Raises:
            ConfigError: the field is not a boolean.
        """
        value = self.values.get(name)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise ConfigError(f"{self.at(name)}: must be true or false")

    def section(self, name: str) -> Section | None:
        """Return a nested mapping; None if absent.

        Raises:
            ConfigError: the field is not a mapping.
        """
        value = self.values.get(name)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ConfigError(f"{self.at(name)}: must be a mapping")
        return Section(self.at(name), value, self.directory)

    def sections(self, name: str) -> Sequence[Section]:
        """Return the mappings of a list field; empty if absent.

        Raises:
            ConfigError: the field is not a list of mappings.
        """
        found = self.values.get(name) or []
        if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
            raise ConfigError(f"{self.at(name)}: must be a list of mappings")
        return [
            Section(f"{self.at(name)}[{index}]", item, self.directory) for index, item in enumerate(found)
        ]

    def path(self, name: str) -> Path | None:
        """Return the path of a file, relative to the kubeconfig's directory; None if absent."""
        text = self.text(name)
        return self.directory / text if text else None

    def material(self, name: str) -> Path | bytes | None:
        """Return the decoded ``<name>-data``, or the path in ``<name>``; None if both are absent.

        Raises:
            ConfigError: the data is not base64.
        """
        text = self.text(f"{name}-data")
        if not text:
            return self.path(name)
        try:
            return base64.b64decode("".join(text.split()), validate=True)
        except binascii.Error:
            raise ConfigError(f"{self.at(name)}-data: is not base64") from None


@dataclass(frozen=True, slots=True)
class Context:
    """One resolved context.

    Attributes:
        name: its name.
        namespace: its namespace; empty if it has none.
        cluster: the cluster.
        user: the user; an empty section if the context has none.
        source: the files, for messages.
    """

    name: str
    namespace: str
    cluster: Section
    user: Section
    source: str


def read(paths: Sequence[str], *, context: str = "", must_exist: bool = False) -> Context | None:
    """Read kubeconfig files and resolve one context.

    Args:
        paths: in order of precedence; ``~`` is expanded.
        context: its name; empty: the current context.
        must_exist: whether a missing file is an error; otherwise it is skipped.

    Returns:
        The context; None if no file exists, or the existing ones are empty.

    Raises:
        ConfigError: names the file, the field, and what is wrong.
    """
    files = [file for path in dict.fromkeys(paths) if path and (file := _parse(path, must_exist=must_exist))]
    if not files:
        return None
    source = f"kubeconfig {os.pathsep.join(path for path in dict.fromkeys(paths) if path)}"
    name = context or next(filter(None, (file.text("current-context") for file in files)), "")
    if not name:
        raise ConfigError(f"{source}: current-context: none is set, and no context was given")
    found = _entry(files, "contexts", "context", name, source=source)
    cluster_name, user_name = found.text("cluster"), found.text("user")
    if not cluster_name:
        raise ConfigError(f"{found.at('cluster')}: is missing")
    return Context(
        name=name,
        namespace=found.text("namespace"),
        cluster=_entry(files, "clusters", "cluster", cluster_name, source=source),
        user=_entry(files, "users", "user", user_name, source=source)
        if user_name
        else Section(f"{source}: user", {}, found.directory),
        source=source,
    )


def places(path: str = "") -> list[str]:
    """Return the paths of kubeconfigs in order of precedence: ``path``, or kubectl's defaults if empty."""
    return (path or os.environ.get("KUBECONFIG") or "~/.kube/config").split(os.pathsep)


def contexts(paths: Sequence[str]) -> list[str]:
    """Return the names of all contexts of kubeconfig files, in order.

    Raises:
        ConfigError: a file cannot be read.
    """
    files = [file for path in paths if path and (file := _parse(path, must_exist=False))]
    named = (item.text("name") for file in files for item in file.sections("contexts"))
    return list(dict.fromkeys(filter(None, named)))


def at_home(path: str) -> Path:
    """Return a path with ``~`` replaced.

    Raises:
        ConfigError: there is no home directory: $HOME is not set, and the user is unknown, such as the arbitrary user of a
            container.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise ConfigError(f"{path}: the home directory is not known; set $HOME") from None


def _parse(path: str, *, must_exist: bool) -> Section | None:
    where = f"kubeconfig {path}"
    try:
        file = at_home(path)
    except ConfigError as error:
        if must_exist:
            raise ConfigError(f"kubeconfig {error}") from None
        return None
    try:
        whole = decode_yaml(file_text(file.read_bytes()))
    except FileNotFoundError:
        if must_exist:
            raise ConfigError(f"{where}: no such file") from None
        return None
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from None
    except (ValueError, RuntimeError) as error:
        raise ConfigError(f"{where}: cannot be read: {' '.join(str(error).split())}") from None
    if whole is None and not must_exist:
        return None
    if not isinstance(whole, dict):
        raise ConfigError(f"{where}: {'is empty' if whole is None else 'must be a mapping'}")
    return Section(f"{where}:", whole, file.parent.absolute())


def _entry(files: Sequence[Section], plural: str, singular: str, name: str, *, source: str) -> Section:
    known: list[str] = []
    for file in files:
        for item in file.sections(plural):
            own = item.text("name")
            if own != name:
                known.append(own)
                continue
            where = f"{file.where} {plural}[name={name}].{singular}"
            values = item.values.get(singular)
            if values is None:
                values = {}
            if not isinstance(values, dict):
                raise ConfigError(f"{where}: must be a mapping")
            return Section(where, values, file.directory)
    existing = ", ".join(dict.fromkeys(filter(None, known))) or "none"
    raise ConfigError(f"{source}: {plural}: there is no {singular} {name!r} (there are: {existing})")

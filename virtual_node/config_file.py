"""The YAML file of ``--config``, read and checked."""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import msgspec

from controller_runtime.api.decoding import decode_yaml
from controller_runtime.errors import ConfigError
from controller_runtime.flags import read_text
from virtual_node import config
from virtual_node.config import Config
from virtual_node.config_validation import validate

_UNKNOWN_FIELD = re.compile(r"unknown field `([^`]*)`")


def load(path: str | Path) -> Config:
    """Read a YAML configuration file. Relative kubeconfig paths are relative to the file.

    Raises:
        ConfigError: the file cannot be read, or as ``parse``.
    """
    path = Path(path)
    parsed = parse(read_text("--config", path), source=str(path))
    parsed.kubeconfig = _beside(path, parsed.kubeconfig)
    for cluster in parsed.clusters:
        cluster.kubeconfig = _beside(path, cluster.kubeconfig)
    return parsed


def parse(text: str, *, source: str = "config") -> Config:
    """Read a YAML configuration.

    Raises:
        ConfigError: names the source and the field that is wrong.
    """
    try:
        document = decode_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not YAML: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with apiVersion, kind and clusters")
    try:
        parsed = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}{_guess(str(error))}") from None
    problems = validate(parsed)
    if problems:
        raise ConfigError(f"{source}: " + "; ".join(problems))
    return parsed


def _guess(complaint: str) -> str:
    """What an unknown field may have been meant to be."""
    unknown = _UNKNOWN_FIELD.search(complaint)
    if unknown is None:
        return ""
    known = {
        field.lower(): field
        for struct in vars(config).values()
        if isinstance(struct, type) and issubclass(struct, msgspec.Struct)
        for field in struct.__struct_encode_fields__
    }
    close = difflib.get_close_matches(unknown[1].lower(), known, n=1)
    return f"; did you mean {known[close[0]]}?" if close else ""


def _beside(config_file: Path, path: str) -> str:
    if not path:
        return path
    expanded = Path(path).expanduser()
    return str(expanded if expanded.is_absolute() else config_file.parent / expanded)

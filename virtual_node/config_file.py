"""The YAML file of ``--config``, read and checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import yaml

from controller_runtime.errors import ConfigError
from virtual_node.config import Config
from virtual_node.config_validation import validate


def load(path: str | Path) -> Config:
    """Read a YAML configuration file. Relative kubeconfig paths are relative to the file.

    Raises:
        ConfigError: the file cannot be read, or as ``parse``.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"--config {path}: {why}") from None
    config = parse(text, source=str(path))
    config.kubeconfig = _beside(path, config.kubeconfig)
    for cluster in config.clusters:
        cluster.kubeconfig = _beside(path, cluster.kubeconfig)
    return config


def parse(text: str, *, source: str = "config") -> Config:
    """Read a YAML configuration.

    Raises:
        ConfigError: names the source and the field that is wrong.
    """
    try:
        document: Any = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"{source}: not YAML: {_one_line(error)}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with apiVersion, kind and clusters")
    try:
        config = msgspec.convert(document, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {error}") from None
    problems = validate(config)
    if problems:
        raise ConfigError(f"{source}: " + "; ".join(problems))
    return config


def _beside(config_file: Path, path: str) -> str:
    if not path:
        return path
    expanded = Path(path).expanduser()
    return str(expanded if expanded.is_absolute() else config_file.parent / expanded)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

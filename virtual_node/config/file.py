"""Reading and validation of the YAML file of ``--config``."""

from __future__ import annotations

from pathlib import Path

from controller_runtime.apimachinery.decoding import convert, decode_yaml
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import read_text
from virtual_node.config.types import Config
from virtual_node.config.validation import validate

_SHOWN = 20
"""Maximum number of problems in an error message."""


def load(path: str | Path) -> Config:
    """Return the configuration in a YAML file. Relative paths in it are relative to the directory of the file.

    Raises:
        ConfigError: the file cannot be read or is invalid, as for ``parse``.
    """
    return placed(Path(path), parse(read_text("--config", path), source=str(path)))


def placed(path: Path, parsed: Config) -> Config:
    """Resolve relative kubeconfig and provider file paths against the file's directory, in place; return ``parsed``."""
    parsed.kubeconfig = _beside(path, parsed.kubeconfig)
    if (profiles := parsed.cluster_profiles) is not None:
        profiles.providers_file = _beside(path, profiles.providers_file)
    for cluster in parsed.clusters:
        cluster.kubeconfig = _beside(path, cluster.kubeconfig)
    return parsed


def parse(text: str, *, source: str = "config") -> Config:
    """Return the configuration in a YAML text.

    Raises:
        ConfigError: the text is invalid; the error names the source and the field.
    """
    try:
        document = decode_yaml(text)
    except ValueError as error:
        raise ConfigError(f"{source}: not YAML: {error}") from None
    if not isinstance(document, dict):
        raise ConfigError(f"{source}: expected a mapping with apiVersion, kind and clusters")
    try:
        parsed = convert(document, Config)
    except ValueError as error:
        raise ConfigError(f"{source}: {error}") from None
    problems = validate(parsed)
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ConfigError(f"{source}: " + "; ".join(problems[:_SHOWN]) + more)
    return parsed


def _beside(config_file: Path, path: str) -> str:
    if not path:
        return path
    expanded = Path(path).expanduser()
    return str(expanded if expanded.is_absolute() else config_file.parent / expanded)

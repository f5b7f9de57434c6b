"""The YAML file of ``--config``, as the virtual node reads it."""

from __future__ import annotations

from pathlib import Path

from clusterset.reading import ConfigFile
from virtual_node.config.types import Config
from virtual_node.config.validation import validate

_FILE = ConfigFile(Config, validate, paths=("kubeconfig",))
parse, load_usable = _FILE.parse, _FILE.load_usable


def load(path: str | Path) -> Config:
    """Return the configuration in a file. Relative paths in it are relative to the directory of the file.

    Raises:
        ConfigError: the file cannot be read or is invalid; the error names the source and the field.
    """
    config = _FILE.load(path)
    for cluster in config.clusters:
        # Only the multi-scheduler uses it, so a change must not restart the virtual nodes of the cluster.
        cluster.usage = None
    return config

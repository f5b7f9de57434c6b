"""The YAML file of ``--config``, as the virtual node reads it."""

from __future__ import annotations

from clusterset.reading import ConfigFile
from virtual_node.config.types import Config
from virtual_node.config.validation import validate

_FILE = ConfigFile(Config, validate, paths=("kubeconfig",))
load, parse, load_usable = _FILE.load, _FILE.parse, _FILE.load_usable

"""Loads the valid part of an invalid configuration file, to report about it and to clean up."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec

from controller_runtime.apimachinery.decoding import decode_yaml
from controller_runtime.errors import ConfigError
from controller_runtime.process.flags import read_text
from virtual_node.config.file import placed
from virtual_node.config.types import Config

_UNKNOWN_FIELD = re.compile(r"unknown field `(.*?)`(?: - at |$)", re.DOTALL)
_PLACE = re.compile(r" - at (?P<key>`key` in )?`\$(?P<path>.*?)(?P<map>\[\.\.\.\].*)?`$")
"""Location in msgspec's error message, up to the first map. With ``key``, the error concerns the map's keys."""
_OTHER_KEYS = "keys that are not text"
_STEP = re.compile(r"\.([^.\[]+)|\[([0-9]+)\]")


def load_usable(path: str | Path) -> Config:
    """Return a file's configuration without unknown fields and values of a wrong type.

    The daemon must not mirror pods with it, because it differs from what was configured. Values that
    contradict each other are kept. If the file cannot be read or is not YAML, the result is the default
    configuration.
    """
    try:
        document = decode_yaml(read_text("--config", path))
    except (ConfigError, ValueError):
        return Config()
    while True:
        try:
            return placed(Path(path), msgspec.convert(document, Config))
        except msgspec.ValidationError as error:
            if not _drop(document, str(error)):
                return Config()


def _drop(document: Any, complaint: str) -> bool:
    """Delete the part of a document that a msgspec error names; report whether something was deleted.

    ``$.a[0].b[...]`` is an entry of a map for which msgspec does not give the key, so the whole map is
    deleted.
    """
    place, unknown = _PLACE.search(complaint), _UNKNOWN_FIELD.search(complaint)
    steps: list[str | int] = [
        int(step[2]) if step[2] else step[1] for step in _STEP.finditer(place["path"] if place else "")
    ]
    if place is not None and place["key"]:
        steps.append(_OTHER_KEYS)
    elif unknown is not None and not (place is not None and place["map"]):
        steps.append(unknown[1])
    if not steps:
        return False
    for step in steps[:-1]:
        document = document[step]
    if steps[-1] is _OTHER_KEYS:
        for key in [one for one in document if not isinstance(one, str)]:
            del document[key]
        return True
    if isinstance(document, dict) and steps[-1] not in document:
        return False  # the name contains msgspec's quotation marks and was cut
    del document[steps[-1]]
    return True

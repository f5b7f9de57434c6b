"""The chart's CustomResourceDefinition of Swarms, from ``swarm/crd.py``."""

from __future__ import annotations

import yaml

from hack.chart.rights import CHART
from swarm import crd

FILE = CHART / "files" / "swarm-crd.yaml"
_HEADER = "# Made by `python -m hack.chart` from swarm/crd.py. Do not edit.\n"


def render() -> str:
    """Return the file's text."""
    return _HEADER + yaml.dump(crd.definition(), Dumper=_NoAliases, sort_keys=False, width=110)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True

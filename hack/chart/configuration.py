"""JSON schemas of the configuration files that values.yaml contains, from the structures that decode these files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from controller_runtime.api.autoscaling import TAINT_EFFECTS
from controller_runtime.api.matching import LABEL_OPERATORS, LabelSelector
from controller_runtime.inventory.providers import Provider
from multi_scheduler.agents.by_node import NodeSettings
from multi_scheduler.agents.congestion import CongestionSettings
from multi_scheduler.agents.cost import CostSettings
from multi_scheduler.agents.division import DivisionSettings
from multi_scheduler.agents.fragmentation import FragmentationSettings
from multi_scheduler.agents.learned import LearnedSettings
from multi_scheduler.agents.load import LoadSettings
from multi_scheduler.agents.pigeon import PigeonSettings
from multi_scheduler.agents.safe import SafeSettings
from multi_scheduler.fit.settings import FitSettings
from multi_scheduler.usage.config import UsageConfig
from virtual_node.config.types import KNOWN_CONTROLLERS, Config

Schema = dict[str, Any]
AGENTS: Mapping[str, type[msgspec.Struct]] = {
    "congestion": CongestionSettings,
    "cost": CostSettings,
    "division": DivisionSettings,
    "fit": FitSettings,
    "fragmentation": FragmentationSettings,
    "learned": LearnedSettings,
    "load": LoadSettings,
    "pigeon": PigeonSettings,
    "pressure": NodeSettings,
    "safe": SafeSettings,
}
"""Agent → structure of its settings."""
_REFERENCE = "#/definitions/{name}"


def reference(name: str) -> Schema:
    """Return a reference to the definition of a structure."""
    return {"$ref": _REFERENCE.format(name=name)}


def definitions() -> dict[str, Schema]:
    """Return the schemas of the configuration files and of their parts, by structure."""
    _, parts = msgspec.json.schema_components(
        (Config, LabelSelector, Provider, UsageConfig, *AGENTS.values()), ref_template=_REFERENCE
    )
    for name, part in parts.items():
        part["properties"] = {field: _compact(one) for field, one in part["properties"].items()}
        if name in _CHANGES:
            _CHANGES[name](part)
        if not part.get("required"):
            part.pop("required", None)
    return dict(parts)


def _compact(field: Schema) -> Schema:
    """Return a field's schema; ``anyOf`` with ``null`` becomes a type or value, because Helm reports every branch."""
    branches = field.get("anyOf", [])
    if len(branches) != 2 or branches[1] != {"type": "null"} or "$ref" in branches[0]:
        return field
    merged = {**branches[0], **{key: value for key, value in field.items() if key != "anyOf"}}
    if "enum" in merged:
        return {**merged, "enum": [*merged["enum"], None]}
    return {**merged, "type": [merged["type"], "null"]}


def _change_cluster(part: Schema) -> None:
    part["required"].remove("name")
    # An entry of virtualNode.clusters sets these fields itself; a second value in its ``config`` would be ignored.
    part["properties"] |= {
        "name": False,
        "kubeconfig": False,
        "podSelector": reference(LabelSelector.__name__),
    }


def _change_override(part: Schema) -> None:
    part["properties"]["podSelector"] = reference(LabelSelector.__name__)


def _change_config(part: Schema) -> None:
    part["properties"]["enableControllers"]["items"] = {"enum": list(KNOWN_CONTROLLERS)}
    # templates/checks.yaml refuses these with an error that names the value.
    for field in ("apiVersion", "kind", "clusters", "clusterProfiles"):
        part["properties"][field] = {}


def _change_profiles(part: Schema) -> None:
    # The chart writes the file of providers from values.
    del part["properties"]["providersFile"]
    part["required"] = ["namespace", "providers"]
    part["properties"] |= {
        "defaults": reference("LowerClusterConfig"),
        "providers": {"type": "array", "minItems": 1, "items": reference(Provider.__name__)},
    }


def _change_selector(part: Schema) -> None:
    part["additionalProperties"] = False


def _change_requirement(part: Schema) -> None:
    part["properties"]["operator"] = {"enum": sorted(LABEL_OPERATORS)}
    part |= {"required": ["operator"], "additionalProperties": False}


def _change_taint(part: Schema) -> None:
    part["properties"]["effect"] = {"enum": list(TAINT_EFFECTS)}


_CHANGES: Mapping[str, Callable[[Schema], None]] = {
    "ClusterProfiles": _change_profiles,
    "Config": _change_config,
    "LowerClusterConfig": _change_cluster,
    "Override": _change_override,
    "LabelSelector": _change_selector,
    "Requirement": _change_requirement,
    "Taint": _change_taint,
}
"""Structure → function that adds constraints of the chart, or of the program's validation, to its schema."""

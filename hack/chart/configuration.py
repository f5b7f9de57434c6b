"""JSON schemas of the configuration files that values.yaml contains, from the structures that decode these files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import metadata
from typing import Any, get_args

import msgspec

from clusterset.config import KNOWN_CONTROLLERS, UsageConfig
from clusterset.model.autoscaling import TAINT_EFFECTS
from clusterset.profiles import Provider
from controller_runtime.apimachinery.decoding import former_name
from controller_runtime.apimachinery.matching import LABEL_OPERATORS, LabelSelector
from multi_scheduler.agent import GROUP
from virtual_node.config.types import Config

Schema = dict[str, Any]
_REFERENCE = "#/definitions/{name}"


def reference(name: str) -> Schema:
    """Return a reference to the definition of a structure."""
    return {"$ref": _REFERENCE.format(name=name)}


@cache
def agents() -> Mapping[str, type[msgspec.Struct]]:
    """Return the structure of the settings of each agent of this project, by the agent's name."""
    loaded = {
        point.name: point.load()
        for point in metadata.entry_points(group=GROUP)
        if point.value.startswith("multi_scheduler.")
    }
    return {
        name: agent.settings_type for name, agent in sorted(loaded.items()) if hasattr(agent, "settings_type")
    }


def definitions() -> dict[str, Schema]:
    """Return the schemas of the configuration files and of their parts, by the name of the structure."""
    _, parts = msgspec.json.schema_components(
        (Config, LabelSelector, Provider, UsageConfig, *agents().values()), ref_template=_REFERENCE
    )
    former = _former_names(Config)
    for name, part in parts.items():
        part["properties"] = {field: _compact(one) for field, one in part["properties"].items()}
        part["properties"] |= _PROPERTIES.get(name, {})
        part.update(_KEYS.get(name, {}))
        if both := {field: former[field] for field in part["properties"] if field in former}:
            part["properties"] |= {old: part["properties"][field] for field, old in both.items()}
            part["not"] = {"anyOf": [{"required": list(names)} for names in both.items()]}
        if not part.get("required"):
            part.pop("required", None)
    # The chart sets this field: it writes the file from clusterProfiles.providers.
    del parts["ClusterProfiles"]["properties"]["providersFile"]
    parts["Config"]["properties"]["enableControllers"]["items"] = _CONTROLLERS
    return dict(parts)


def _former_names(kind: Any) -> dict[str, str]:
    """Return the former names of fields in a type, by their current names."""
    found: dict[str, str] = {}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for field in msgspec.structs.fields(kind):
            if (former := former_name(field.name)) != field.encode_name:
                found[field.encode_name] = former
            found |= _former_names(field.type)
    for argument in get_args(kind):
        found |= _former_names(argument)
    return found


def choices(structure: type[msgspec.Struct], field: str) -> Schema:
    """Return the schema of a field that has one of some texts."""
    _, parts = msgspec.json.schema_components((structure,))
    values = _compact(parts[structure.__name__]["properties"][field])["enum"]
    return {"type": "string", "enum": [value for value in values if value is not None]}


def _compact(field: Schema) -> Schema:
    """Return a field's schema, with ``null`` in its type or enum instead of in ``anyOf``: Helm reports every branch."""
    branches = field.get("anyOf", [])
    if len(branches) != 2 or branches[1] != {"type": "null"} or "$ref" in branches[0]:
        return field
    merged = {**branches[0], **{key: value for key, value in field.items() if key != "anyOf"}}
    if "enum" in merged:
        return {**merged, "enum": [*merged["enum"], None]}
    return {**merged, "type": [merged["type"], "null"]}


_CONTROLLERS = {"enum": list(KNOWN_CONTROLLERS)}
_SELECTOR = reference(LabelSelector.__name__)
_PROPERTIES: Mapping[str, Mapping[str, Schema | bool]] = {
    "ClusterProfiles": {
        "defaults": reference("Cluster"),
        "providers": {"type": "array", "minItems": 1, "items": reference(Provider.__name__)},
    },
    # templates/checks.yaml refuses these with an error that names the value.
    "Config": {field: {} for field in ("apiVersion", "kind", "clusters", "clusterProfiles")},
    # An entry of virtualNode.clusters sets name and kubeconfig; a second value in its ``config`` would be ignored.
    "Cluster": {
        "name": False,
        "kubeconfig": False,
        "podSelector": _SELECTOR,
        "enableControllers": {"type": ["array", "null"], "items": _CONTROLLERS},
    },
    "Override": {"podSelector": _SELECTOR},
    "Requirement": {"operator": {"enum": sorted(LABEL_OPERATORS)}},
    "Taint": {"effect": {"enum": list(TAINT_EFFECTS)}},
}
"""Structure → fields with constraints of the chart, or of the program's validation."""
_KEYS: Mapping[str, Schema] = {
    "ClusterProfiles": {"required": ["namespace", "providers"]},
    "LabelSelector": {"additionalProperties": False},
    "Cluster": {"required": []},
    "Requirement": {"required": ["operator"], "additionalProperties": False},
}
"""Structure → further keys of its schema."""

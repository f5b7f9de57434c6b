"""Schema of ``descheduler.policy``, from the structures that decode it in the program."""

from __future__ import annotations

from typing import Any

import msgspec

from controller_runtime.apimachinery.matching import LabelSelector
from descheduler import config as policy
from descheduler.strategies import registry
from hack.chart.configuration import Schema, reference

_STRATEGIES = {name: one.params_type for name, one in registry.strategies(ours=True).items()}
_KNOWN = registry.known_names(registry.strategies(ours=True))
_BOOLEAN: Schema = {"type": ["boolean", "null"]}
_COUNT: Schema = {"type": ["integer", "null"], "minimum": 0}
_LISTED: Schema = {"type": ["array", "null"], "items": {"type": "string"}}
_LIMITS: dict[str, Schema] = {
    "nodeSelector": {"type": ["string", "null"]},
    "maxNoOfPodsToEvictPerNode": _COUNT,
    "maxNoOfPodsToEvictPerNamespace": _COUNT,
}
_EVICTOR: dict[str, Schema] = dict.fromkeys(
    ("evictLocalStoragePods", "evictSystemCriticalPods", "ignorePvcPods"), _BOOLEAN
)
_VERSIONS = {"v1alpha1": "DeschedulerPolicyV1Alpha1", "v1alpha2": "DeschedulerPolicyV1Alpha2"}
POLICY: Schema = {
    "type": "object",
    "if": {"minProperties": 1},
    "then": {
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"enum": [f"descheduler/{version}" for version in _VERSIONS]},
            "kind": {"const": "DeschedulerPolicy"},
        },
        "allOf": [
            {
                "if": {"properties": {"apiVersion": {"const": f"descheduler/{version}"}}},
                "then": reference(definition),
            }
            for version, definition in _VERSIONS.items()
        ],
    },
}
"""Schema of ``descheduler.policy``; an empty map means no policy."""


def definitions() -> dict[str, Schema]:
    """Return the schemas of both versions of a policy and of strategies' parameters."""
    kinds = tuple(dict.fromkeys(_STRATEGIES.values()))
    _, parts = msgspec.json.schema_components(kinds, ref_template="#/definitions/{name}")
    found: dict[str, Schema] = dict(parts)
    for kind in kinds:
        found[kind.__name__]["properties"]["labelSelector"] = reference(LabelSelector.__name__)
    for part in found.values():
        for field in part["properties"].values():
            field.pop("default", None)
    for kind in kinds:
        found[f"{kind.__name__}V1Alpha1"] = _version_1_params(found[kind.__name__])
        _allow(found[kind.__name__], apiVersion={}, kind={})
        found[kind.__name__]["type"] = ["object", "null"]
    return {**found, _VERSIONS["v1alpha1"]: _version_1(), _VERSIONS["v1alpha2"]: _version_2()}


def _allow(part: Schema, **more: Schema) -> None:
    part["properties"] = {**part["properties"], **more}


def _map(properties: dict[str, Schema], **more: Any) -> Schema:
    return {"type": ["object", "null"], "additionalProperties": False, "properties": properties, **more}


def _version_1_params(params: Schema) -> Schema:
    """Return the schema of v1alpha1 parameters; a strategy's own ones may also be in the maps ``NESTED_PARAMS``."""
    fields = params["properties"]
    priority: dict[str, Schema] = {
        "thresholdPriority": {"type": ["integer", "null"]},
        "thresholdPriorityClassName": {"type": "string"},
    }
    nested = {name: _map(fields) for name in policy.NESTED_PARAMS}
    return _map({**fields, **priority, **nested})


def _version_1() -> Schema:
    def strategy(enabled: Schema, params: Schema) -> Schema:
        return _map({"enabled": enabled, "weight": {}, "params": params})

    known = {
        alias: strategy({"type": "boolean"}, reference(f"{_STRATEGIES[name].__name__}V1Alpha1"))
        for alias, name in sorted(_KNOWN.items())
    }
    # Strategies that only sigs.k8s.io/descheduler has may stay in the file if they are disabled.
    others = strategy({"const": False}, {})
    strategies = {"type": ["object", "null"], "properties": known, "additionalProperties": others}
    return _top({**_LIMITS, **_EVICTOR, "strategies": strategies})


def _version_2() -> Schema:
    protections = {
        name: {"type": ["array", "null"], "items": {"enum": list(known)}}
        for name, known in (
            ("defaultDisabled", policy.DEFAULT_DISABLED),
            ("extraEnabled", policy.EXTRA_ENABLED),
        )
    }
    evictor = _map({
        **_EVICTOR, "labelSelector": reference(LabelSelector.__name__),
        "priorityThreshold": reference(policy.PriorityThreshold.__name__), "podProtections": _map(protections), "nodeSelector": {}, "evictFailedBarePods": {}, "nodeFit": {}, "apiVersion": {}, "kind": {}
    })  # fmt: skip
    arguments = {alias: reference(_STRATEGIES[name].__name__) for alias, name in sorted(_KNOWN.items())}
    config = _map({"name": {"type": "string"}, "args": {"type": ["object", "null"]}}, required=["name"])
    config["allOf"] = [
        {"if": {"properties": {"name": {"const": name}}}, "then": {"properties": {"args": args}}}
        for name, args in {**arguments, policy.EVICTOR: evictor}.items()
    ]
    ours: Schema = {"type": ["array", "null"], "items": {"enum": sorted(_KNOWN)}}
    points = {name: _map({"enabled": ours, "disabled": _LISTED}) for name in ("deschedule", "balance")}
    # Accepted but ignored: the descheduler has its own filters and its own order of pods.
    points |= {name: {} for name in ("filter", "preEvictionFilter", "preevictionfilter", "sort")}
    profile = _map({
        "name": {}, "pluginConfig": {"type": ["array", "null"], "items": config}, "plugins": _map(points)
    })  # fmt: skip
    profiles = {"type": "array", "items": profile}
    return _top({**_LIMITS, "maxNoOfPodsToEvictTotal": _COUNT, "profiles": profiles})


def _top(properties: dict[str, Schema]) -> Schema:
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {"apiVersion": {}, "kind": {}, **properties},
    }

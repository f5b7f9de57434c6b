"""The CustomResourceDefinition of Swarms in the chart, from the types in ``swarm/spec.py``."""

from __future__ import annotations

from typing import Any

import msgspec
import yaml

from clusterset.model.names import SWARMS
from hack.chart.rights import CHART
from swarm.spec import GROUP, LABEL_KEY, LABEL_VALUE, MOST_REQUIREMENTS, SwarmSpec

_RULES = "x-kubernetes-validations"
_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_VALUE = {"type": "string", "maxLength": 63, "pattern": f"^{LABEL_VALUE}$"}
_LABELS = {"type": "object", "additionalProperties": _LABEL_VALUE, "maxProperties": MOST_REQUIREMENTS}
_SELECTOR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "matchLabels": _LABELS,
        "matchExpressions": {
            "type": "array",
            "maxItems": MOST_REQUIREMENTS,
            "items": {
                "type": "object",
                "required": ["key", "operator"],
                "properties": {
                    "key": {"type": "string", "maxLength": 317, "pattern": f"^{LABEL_KEY}$"},
                    "operator": {"type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist"]},
                    "values": {"type": "array", "items": _LABEL_VALUE, "maxItems": 64},
                },
            },
        },
    },
}
FILE = CHART / "files" / "swarm-crd.yaml"
_HEADER = "# Made by `python -m hack.chart` from hack/chart/swarm.py. Do not edit.\n"


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    names = {"kind": SWARMS.kind, "listKind": "SwarmList", "plural": SWARMS.plural, "singular": "swarm"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        # Helm reads the annotation from the existing object: without it, an upgrade would delete a definition that
        # `kubectl replace` has taken from its release, and all Swarms with it.
        "metadata": {"name": f"swarms.{GROUP}", "annotations": {"helm.sh/resource-policy": "keep"}},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {**names, "categories": ["all"]},
            "versions": [
                {
                    "name": SWARMS.version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": _columns(),
                    "schema": {"openAPIV3Schema": _schema()},
                }
            ],
        },
    }


def _columns() -> list[dict[str, Any]]:
    def column(name: str, kind: str, path: str, priority: int = 0) -> dict[str, Any]:
        return {"name": name, "type": kind, "jsonPath": path, **({"priority": priority} if priority else {})}

    def condition(kind: str, field: str = "status") -> str:
        return f".status.conditions[?(@.type=='{kind}')].{field}"

    return [
        column("Jobs", "integer", ".status.jobCount"),
        column("Assigned", "integer", ".status.assignedCount"),
        column("Running", "integer", ".status.runningCount"),
        column("Workers", "integer", ".status.workerCount"),
        column("Version", "integer", ".status.version"),
        column("Converged", "string", condition("Converged")),
        column("Degraded", "string", condition("Degraded")),
        column("Age", "date", ".metadata.creationTimestamp"),
        column("Strategy", "string", ".spec.strategy", 1),
        column("Handover", "string", ".spec.handover", 1),
        column("Message", "string", condition("Degraded", "message"), 1),
    ]


def _schema() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": _spec(),
            "status": _status(),
        },
        _RULES: [
            {
                "rule": f"self.metadata.name.matches('^{_NAME}$') && size(self.metadata.name) <= 63",
                "message": "metadata.name must be a DNS label: names of a worker's objects begin with it",
            }
        ],
    }


def _spec() -> dict[str, Any]:
    (whole,), parts = msgspec.json.schema_components([SwarmSpec], ref_template="{name}")
    spec = _structural(whole, parts)
    fields = spec["properties"]
    fields["jobs"] |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"]}
    fields["jobsFrom"][_RULES] = [_one_of("configMap", "selector")]
    fields["workers"][_RULES] = [_one_of("statefulSet", "deployment", "selector")]
    spec[_RULES] = [
        {
            "rule": "!(has(self.jobs) && has(self.jobsFrom))",
            "message": "set jobs or jobsFrom, not both",
        },
        {
            "rule": "!has(self.fenceSeconds) || self.fenceSeconds == 0 || self.fenceSeconds >= 5",
            "message": "fenceSeconds must be 0 or at least 5",
        },
        {
            "rule": "!has(self.fenceSeconds) || self.fenceSeconds == 0 || !has(self.workers.httpPort)"
            " || self.workers.httpPort == 0",
            "message": "fenceSeconds needs Leases: set workers.httpPort to 0",
        },
    ]
    return spec


def _structural(schema: dict[str, Any], parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return msgspec's schema of a field in the form of CustomResourceDefinitions: without references and null."""
    found = dict(schema)
    if choices := found.pop("anyOf", None):  # the field's type, or null
        found = choices[0] | found
    if name := found.pop("$ref", ""):
        found = {key: parts[name][key] for key in ("type", "required", "properties")} | found
    elif found.get("type") == "object":
        found |= _SELECTOR
    for key in ("default", "required"):
        if found.get(key) in (None, "", (), [], {}):
            found.pop(key, None)
    if "enum" in found:
        found["type"] = "string"
    if "pattern" in found:
        found["pattern"] = found["pattern"].replace(r"\Z", "$")
    if "items" in found:
        found["items"] = _structural(found["items"], parts)
    if name:
        fields = found["properties"].items()
        found["properties"] = {field: _structural(part, parts) for field, part in fields}
    return found


def _status() -> dict[str, Any]:
    integer = {"type": "integer"}
    text = {"type": "string"}
    names = {"type": "array", "items": text}
    return {
        "type": "object",
        "properties": {
            **dict.fromkeys(
                (
                    "observedGeneration",
                    "version",
                    "tableVersion",
                    "workerCount",
                    "jobCount",
                    "assignedCount",
                    "runningCount",
                ),
                integer,
            ),
            "workers": {
                "type": "array",
                "items": {
                    "type": "object",
                    "properties": {
                        **dict.fromkeys(("name", "pod", "cluster"), text),
                        **dict.fromkeys(
                            ("jobCount", "runningCount", "assignedVersion", "acknowledgedVersion"), integer
                        ),
                        "jobs": names,
                        "stopping": {**names, "description": "Revoked, and not acknowledged yet."},
                        "failing": {"type": "object", "additionalProperties": text},
                    },
                },
            },
            "unassigned": {
                "type": "array",
                "items": {"type": "object", "properties": {"job": text, "reason": text}},
            },
            "conditions": {
                "type": "array",
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status"],
                    "properties": {
                        **dict.fromkeys(("type", "status", "reason", "message"), text),
                        "lastTransitionTime": {"type": "string", "format": "date-time"},
                        "observedGeneration": integer,
                    },
                },
            },
            "record": {
                "description": "The controller's record of grants. Do not change it.",
                "type": "string",
            },
        },
    }


def _one_of(*fields: str) -> dict[str, str]:
    count = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)
    return {"rule": f"{count} == 1", "message": f"set exactly one of {', '.join(fields)}"}


def render() -> str:
    """Return the file's text."""
    return _HEADER + yaml.dump(definition(), Dumper=_NoAliases, sort_keys=False, width=110)


class _NoAliases(yaml.SafeDumper):
    def ignore_aliases(self, data: object) -> bool:
        return True

"""The CustomResourceDefinition of Swarms. ``python -m hack.chart`` writes it into the chart."""

from __future__ import annotations

from typing import Any

from controller_runtime.resources import SWARMS
from swarm.spec import DATA_KEY, GROUP, JOB_NAME, LABEL_KEY, LABEL_VALUE, LONGEST_JOB, MOST_JOBS, OBJECT_NAME

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_LABEL_VALUE = {"type": "string", "maxLength": 63, "pattern": f"^{LABEL_VALUE}$"}
_LABELS = {"type": "object", "additionalProperties": _LABEL_VALUE, "maxProperties": 32}
_SELECTOR: dict[str, Any] = {
    "type": "object",
    "properties": {
        "matchLabels": _LABELS,
        "matchExpressions": {
            "type": "array",
            "maxItems": 32,
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


def definition() -> dict[str, Any]:
    """Return the CustomResourceDefinition."""
    names = {"kind": SWARMS.kind, "listKind": "SwarmList", "plural": SWARMS.plural, "singular": "swarm"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"swarms.{GROUP}"},
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
        "x-kubernetes-validations": [
            {
                "rule": f"self.metadata.name.matches('^{_NAME}$') && size(self.metadata.name) <= 63",
                "message": "metadata.name must be a DNS label: names of a worker's objects begin with it",
            }
        ],
    }


def _spec() -> dict[str, Any]:
    seconds = {"type": "integer", "minimum": 0, "maximum": 86_400}
    name = {"type": "string", "minLength": 1, "maxLength": 253, "pattern": f"^{OBJECT_NAME}$"}
    return {
        "type": "object",
        "required": ["workers"],
        "properties": {
            "jobs": {
                "description": "The jobs. The name identifies a job.",
                "type": "array",
                "maxItems": MOST_JOBS,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": _job(),
            },
            "jobsFrom": {
                "description": "ConfigMaps with lists of jobs: YAML, or one name per line.",
                "type": "object",
                "properties": {
                    "configMap": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": name,
                            "key": {**name, "pattern": f"^{DATA_KEY}$", "default": "jobs"},
                        },
                    },
                    "selector": _SELECTOR,
                },
                "x-kubernetes-validations": [_one_of("configMap", "selector")],
            },
            "workers": {
                "description": "The pods that run the jobs.",
                "type": "object",
                "properties": {
                    "statefulSet": name,
                    "deployment": name,
                    "selector": _SELECTOR,
                    "httpPort": {
                        "description": "Port of /internal/version. 0: workers acknowledge by their Lease.",
                        "type": "integer",
                        "minimum": 0,
                        "maximum": 65_535,
                        "default": 0,
                    },
                },
                "x-kubernetes-validations": [_one_of("statefulSet", "deployment", "selector")],
            },
            "maxPerWorker": {
                "description": "Largest number of jobs per worker. 0: no limit.",
                "type": "integer",
                "minimum": 0,
                "default": 0,
            },
            "strategy": _enum("Sticky", "Contiguous", "Rendezvous"),
            "handover": _enum("Exclusive", "Overlap"),
            "refresh": _enum("Signal", "Restart"),
            "unreadyGraceSeconds": {
                "description": "How long a worker that is not ready keeps its jobs.",
                **seconds,
                "default": 30,
            },
            "maxUnavailable": {
                "description": "With refresh Restart: workers that may restart at the same time.",
                "type": "integer",
                "minimum": 1,
                "default": 1,
            },
            "fenceSeconds": {
                "description": "A worker that cannot acknowledge for this long stops its jobs. 0: never.",
                **seconds,
                "default": 0,
            },
            "configMap": {
                "description": "Name of a ConfigMap that is kept in the layout of k8s-swarm.",
                **name,
                "minLength": 0,
                "pattern": f"^({OBJECT_NAME})?$",
            },
        },
        "x-kubernetes-validations": [
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
        ],
    }


def _job() -> dict[str, Any]:
    return {
        "type": "object",
        "required": ["name"],
        "properties": {
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": LONGEST_JOB,
                "pattern": f"^{JOB_NAME}$",
            },
            "weight": {"type": "integer", "minimum": 1, "maximum": 1_000_000, "default": 1},
            "qos": {
                "description": "Dedicated: the job runs alone on its worker.",
                **_enum("Shared", "Dedicated"),
            },
            "affinity": {
                "type": "object",
                "properties": {
                    "workers": {**_SELECTOR, "description": "Labels of pods."},
                    "clusters": {
                        "description": "Names of nodes. A virtual node represents its lower cluster.",
                        "type": "array",
                        "maxItems": 256,
                        "items": {"type": "string", "minLength": 1, "maxLength": 253},
                    },
                },
            },
        },
    }


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


def _enum(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values), "default": values[0]}


def _one_of(*fields: str) -> dict[str, str]:
    count = " + ".join(f"(has(self.{field}) ? 1 : 0)" for field in fields)
    return {"rule": f"{count} == 1", "message": f"set exactly one of {', '.join(fields)}"}

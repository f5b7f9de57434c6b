"""values.schema.json: what is wrong with values is said by helm itself, before anything is made.

A value's type is that of its default; what more there is to say of it is in ``_RULES``. A map or list whose default is
empty needs a rule: nothing is left open by accident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import yaml

from hack.chart import configuration, policy, values
from hack.chart.rights import CHART

FILE = CHART / "values.schema.json"
_DURATION = {"type": "string", "pattern": r"^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_LIST_OF_STRINGS = {"type": "array", "items": {"type": "string"}}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_FREE = {"type": "object"}
_NAME = {"type": "string", "pattern": rf"^({_LABEL})?$", "maxLength": 40}
_OBJECT_NAME = {"type": "string", "pattern": rf"^({_LABEL}(\.{_LABEL})*)?$", "maxLength": 253}
_PULL_POLICY = {"type": "string", "enum": ["Always", "IfNotPresent", "Never"]}
_TAG = {"type": "string", "pattern": r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"}
_CLUSTER = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        # It becomes part of volume names (cluster-NAME), which end at 63 characters.
        "name": {"type": "string", "pattern": f"^{_LABEL}$", "maxLength": 50},
        "kubeconfig": {"type": "string", "minLength": 1},
        "kubeconfigSecret": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {
                "name": {"type": "string", "pattern": rf"^{_LABEL}(\.{_LABEL})*$", "maxLength": 253},
                "key": {"type": "string", "pattern": r"^[-._a-zA-Z0-9]+$"},
                "viewer": {"type": "string", "pattern": rf"^{_LABEL}(\.{_LABEL})*$", "maxLength": 253},
            },
        },
        "config": configuration.reference("ClusterConfig"),
    },
    "oneOf": [{"required": ["kubeconfig"]}, {"required": ["kubeconfigSecret"]}],
}
_COUNT = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^(100|[0-9]{1,2})%$"}]}
_STRATEGY = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "type": {"type": "string", "enum": ["RollingUpdate", "Recreate"]},
        "rollingUpdate": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"maxSurge": _COUNT, "maxUnavailable": _COUNT},
        },
    },
}
_AGENT = {
    "type": "object",
    "additionalProperties": False,
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "minLength": 1},
        "weight": {"type": "number", "minimum": 0},
        "config": _FREE,
    },
    "allOf": [
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {"properties": {"config": configuration.reference(settings.__name__)}},
        }
        for name, settings in configuration.AGENTS.items()
    ],
}
"""Settings of agents of other packages are not known here."""
_RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nameOverride", _NAME),
    ("fullnameOverride", _NAME),
    ("*image.digest", {"type": "string", "pattern": "^(sha256:[a-f0-9]{64})?$"}),
    ("image.repository", {"type": "string", "minLength": 1}),
    ("*image.tag", _TAG),
    ("*.pullPolicy", _PULL_POLICY),
    ("imagePullSecrets", {
        "type": "array",
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": ["name"],
            "properties": {"name": {"type": "string", "minLength": 1}},
        },
    }),
    # It becomes a label's value below.
    ("clusterId", {"type": "string", "pattern": r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"}),
    ("log.level", {"type": "string", "enum": ["trace", "debug", "info", "warn", "error"]}),
    ("log.format", {"type": "string", "enum": ["json", "console", "auto"]}),
    ("admissionPolicy.enabled", {"enum": ["auto", True, False]}),
    ("priorityClass.name", _OBJECT_NAME),
    ("priorityClass.value", {"type": "integer", "minimum": -2147483648, "maximum": 1000000000}),
    ("virtualNode.clusters", {"type": "array", "items": _CLUSTER}),
    # What the chart itself says of it is refused by templates/checks.yaml, with the value that says it.
    ("virtualNode.config", configuration.reference("Config")),
    ("virtualNode.kubelet.servingCertificate", {"type": "string", "enum": ["SelfSigned", "CSR", "Files"]}),
    ("virtualNode.kubelet.drainTimeout", {"type": "integer", "minimum": 0}),
    ("webhook.failurePolicy", {"type": "string", "enum": ["Fail", "Ignore"]}),
    ("webhook.timeoutSeconds", {"type": "integer", "minimum": 1, "maximum": 30}),
    ("webhook.tls.caBundle", {"type": "string", "pattern": "^[A-Za-z0-9+/=]*$"}),
    ("descheduler.policy", policy.POLICY),
    ("descheduler.virtualNodes", _LIST_OF_STRINGS),
    ("descheduler.interval", _DURATION),
    ("descheduler.unschedulableThreshold", _DURATION),
    ("freezePeriod", _DURATION),
    ("swarm.goneAfter", _DURATION),
    ("multiScheduler.agents", {"type": "array", "minItems": 1, "items": _AGENT}),
    ("multiScheduler.usage", configuration.reference("UsageConfig")),
    (
        "multiScheduler.clusterUsage",
        {"type": "object", "additionalProperties": configuration.reference("UsageConfig")},
    ),
    ("multiScheduler.tls.enabled", {"type": ["boolean", "null"]}),
    ("multiScheduler.tls.clientNames", _LIST_OF_STRINGS),
    ("multiScheduler.weight", {"type": "integer", "minimum": 1}),
    ("multiScheduler.scheduler.name", {**_OBJECT_NAME, "minLength": 1}),
    ("metrics.serviceMonitor.interval", {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}),
    ("networkPolicy.*From", _OBJECTS),
    ("uninstall.timeout", {"type": "integer", "minimum": 1}),
    ("*.maxUnavailable", _COUNT),
    # Null stands for the default; an empty list for what it says.
    ("*.topologySpreadConstraints", {"type": ["array", "null"], "items": {"type": "object"}}),
    ("*.port", _PORT),
    ("*.replicas", {"type": "integer", "minimum": 0}),
    ("revisionHistoryLimit", {"type": "integer", "minimum": 0}),
    ("*.updateStrategy", _STRATEGY),
    ("extraObjects", {"type": "array", "items": {"type": "object", "required": ["apiVersion", "kind"]}}),
    ("*.serviceAccount.name", _OBJECT_NAME),
    ("*Secret", _OBJECT_NAME),
    ("*.secretName", _OBJECT_NAME),
    ("*SecretName", _OBJECT_NAME),
    ("*.affinity", _FREE),
    ("*.resources", _FREE),
    ("*.nodeSelector", _STRINGS),
    ("*[lL]abels", _STRINGS),
    ("*[aA]nnotations", _STRINGS),
    ("*.tolerations", _OBJECTS),
    ("*.extraArgs", _LIST_OF_STRINGS),
    ("*.extra*", _OBJECTS),
    ("webhook.ignoreSelectorKeys", _LIST_OF_STRINGS),
    ("webhook.excludedNamespaces", _LIST_OF_STRINGS),
    ("metrics.prometheusRule.disabled", _LIST_OF_STRINGS),
)  # fmt: skip
_TOGETHER: Mapping[str, list[dict[str, Any]]] = {
    "virtualNode.kubelet": [
        {
            "if": {"properties": {"servingCertificate": {"const": "Files"}}},
            "then": {"properties": {"servingSecret": {"minLength": 1}}},
        },
        {
            "if": {
                "properties": {"approveServingCertificate": {"const": True}},
                "required": ["approveServingCertificate"],
            },
            "then": {"properties": {"servingCertificate": {"const": "CSR"}}},
        },
    ],
}
"""What values of one map ask of each other."""


def render() -> str:
    """The schema as a file."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """The schema of values.yaml as it is now."""
    text = values.FILE.read_text(encoding="utf-8")
    root = _object(yaml.safe_load(text), "", values.comments(text))
    # As part of another chart: Helm gives it its parent's globals, and the parent says whether it is wanted.
    root["properties"]["global"]["additionalProperties"] = True
    root["properties"]["enabled"] = {"type": "boolean"}
    root["definitions"] = {**configuration.definitions(), **policy.definitions()}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of virtual-node", **root}


def _object(content: Mapping[str, Any], prefix: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {key: _described(f"{prefix}{key}", value, meanings) for key, value in content.items()},
    }
    if required := [key for key, value in content.items() if _is_required(key, value)]:
        found["required"] = required
    if together := _TOGETHER.get(prefix.rstrip(".")):
        found["allOf"] = together
    return found


def _is_required(key: str, default: Any) -> bool:
    """Whether templates cannot do without: ``key=null`` takes a value away, and so does ``--reuse-values`` a new one."""
    return bool(default) and (key not in values.WHOLE or key == "agents") and key != "global"


def _described(path: str, default: Any, meanings: Mapping[str, str]) -> dict[str, Any]:
    meaning = {"description": meanings[path]} if path in meanings else {}
    return {**meaning, **_fragment(path, default, meanings)}


def _fragment(path: str, default: Any, meanings: Mapping[str, str]) -> dict[str, Any]:
    for pattern, fragment in _RULES:
        if fnmatchcase(path, pattern):
            return fragment
    match default:
        case bool():
            return {"type": "boolean"}
        case int():
            return {"type": "integer"}
        case str():
            return {"type": "string"}
        case dict() if default:
            return _object(default, f"{path}.", meanings)
    raise ValueError(f"values.yaml: {path}: say in hack/chart/schema.py what it may be")

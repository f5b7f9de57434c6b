"""values.schema.json: helm refuses invalid values before it renders anything.

A value's schema is its rule in ``_RULES``, otherwise the type of its default. A default that is null, a list or
an empty map needs a rule, so that nothing is left unchecked by accident.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import yaml

from hack.chart import configuration, policy, values
from hack.chart.rights import CHART
from multi_scheduler.config import Config as SchedulerConfig
from virtual_node.config.types import KubeletConfig, LeaderElectionConfig
from virtual_node.examine.codes import CHECKS
from virtual_node.rights import tunnel

FILE = CHART / "values.schema.json"


def _map(properties: dict[str, Any], *required: str, **more: Any) -> dict[str, Any]:
    """Return the schema of a map with these keys only."""
    needed = {"required": list(required)} if required else {}
    return {"type": "object", "additionalProperties": False, **needed, "properties": properties, **more}


def _open(fields: dict[str, Any], *required: str) -> dict[str, Any]:
    """Return the schema of an object of the Kubernetes API, to which newer versions may add fields."""
    return {name: rule for name, rule in _map(fields, *required).items() if name != "additionalProperties"}


def _one_of(*values: str) -> dict[str, Any]:
    return {"type": "string", "enum": list(values)}


_DURATION = {"type": "string", "pattern": r"^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$"}
_PORT = {"type": "integer", "minimum": 1, "maximum": 65535}
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_LIST_OF_STRINGS = {"type": "array", "items": {"type": "string"}}
_OBJECTS = {"type": "array", "items": {"type": "object"}}
_FREE = {"type": "object"}
_NAME = {"type": "string", "pattern": rf"^({_LABEL})?$", "maxLength": 40}
_OBJECT_NAME = {"type": "string", "pattern": rf"^({_LABEL}(\.{_LABEL})*)?$", "maxLength": 253}
_FILLED = {"type": "string", "minLength": 1}
_TAG = {"type": "string", "pattern": r"^([A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?$"}
_REQUIRED_NAME = {"type": "string", "pattern": rf"^{_LABEL}(\.{_LABEL})*$", "maxLength": 253}
_KUBECONFIG_SECRET = {
    "name": _REQUIRED_NAME,
    "key": {"type": "string", "pattern": r"^[-._a-zA-Z0-9]+$"},
    "viewer": _REQUIRED_NAME,
}
_TUNNEL = _map(
    {
        "address": {"type": "string", "pattern": "^.+:[0-9]+$"},
        "service": _map(
            {"type": _one_of("LoadBalancer", "NodePort", "ClusterIP"), "annotations": _STRINGS},
        ),
    },
    "address",
)
_CLUSTER = _map(
    {
        # The name becomes part of volume names (cluster-NAME), which have at most 63 characters.
        "name": {"type": "string", "pattern": f"^{_LABEL}$", "maxLength": 50},
        "kubeconfig": _FILLED,
        "kubeconfigSecret": _map(_KUBECONFIG_SECRET, "name"),
        "config": configuration.reference("Cluster"),
        "tunnel": _TUNNEL,
    },
    "name",
    oneOf=[{"required": ["kubeconfig"]}, {"required": ["kubeconfigSecret"]}],
    # The name becomes part of the Service virtual-node-NAME-tunnel-agents, which has at most 63 characters.
    **{"if": {"required": ["tunnel"]}, "then": {"properties": {"name": {"maxLength": tunnel.MAX_NAME}}}},
)
_COUNT = {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": r"^(100|[0-9]{1,2})%$"}]}
_STRATEGY = _map(
    {
        "type": _one_of("RollingUpdate", "Recreate"),
        "rollingUpdate": _map({"maxSurge": _COUNT, "maxUnavailable": _COUNT}),
    }
)
_ENV = _open(
    {"name": _FILLED, "value": {"type": ["string", "null"]}, "valueFrom": {"type": ["object", "null"]}},
    "name",
)
"""A variable. Its value is quoted in YAML if it looks like a number or a boolean; the API server refuses others."""
_NAMED = {"type": "object", "required": ["name"]}
_TOLERATION = _open(
    {
        **{field: {"type": ["string", "null"]} for field in ("key", "operator", "value", "effect")},
        "tolerationSeconds": {"type": ["integer", "null"]},
    }
)
_CONSTRAINT = _open(
    {
        "maxSkew": {"type": "integer", "minimum": 1},
        "topologyKey": _FILLED,
        "whenUnsatisfiable": _one_of("DoNotSchedule", "ScheduleAnyway"),
        "labelSelector": {"type": ["object", "null"]},
        "matchLabelKeys": {**_LIST_OF_STRINGS, "type": ["array", "null"]},
        "minDomains": {"type": ["integer", "null"], "minimum": 1},
        "nodeAffinityPolicy": {"enum": ["Honor", "Ignore", None]},
        "nodeTaintsPolicy": {"enum": ["Honor", "Ignore", None]},
    },
    *("maxSkew", "topologyKey", "whenUnsatisfiable"),
)
_AGENT = _map(
    {"name": _FILLED, "weight": {"type": "number", "minimum": 0}, "config": _FREE},
    "name",
    allOf=[
        {
            "if": {"properties": {"name": {"const": name}}},
            "then": {"properties": {"config": configuration.reference(settings.__name__)}},
        }
        for name, settings in configuration.agents().items()
    ],
)
"""Schema of one agent. Settings of agents from other packages are not checked."""
_RULES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("nameOverride", _NAME),
    ("fullnameOverride", _NAME),
    ("*image.digest", {"type": "string", "pattern": "^(sha256:[a-f0-9]{64})?$"}),
    ("image.repository", _FILLED),
    ("*image.tag", _TAG),
    ("*.pullPolicy", _one_of("Always", "IfNotPresent", "Never")),
    ("imagePullSecrets", {"type": "array", "items": _map({"name": _FILLED}, "name")}),
    (
        "global.imagePullSecrets",
        {"type": "array", "items": {"anyOf": [_FILLED, _map({"name": _FILLED}, "name")]}},
    ),
    # The id becomes a label's value in the lower cluster.
    ("clusterId", {"type": "string", "pattern": r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$"}),
    ("log.level", _one_of("trace", "debug", "info", "warn", "error")),
    ("log.format", _one_of("json", "console", "auto")),
    ("admissionPolicy.enabled", {"enum": ["auto", True, False]}),
    ("admissionPolicy.protectedNamespaces", _LIST_OF_STRINGS),
    ("priorityClass.name", _OBJECT_NAME),
    ("priorityClass.value", {"type": "integer", "minimum": -2147483648, "maximum": 1000000000}),
    ("virtualNode.clusters", {"type": "array", "items": _CLUSTER}),
    # templates/checks.yaml refuses the fields that the chart sets itself, with an error that names the value.
    ("virtualNode.config", configuration.reference("Config")),
    ("virtualNode.clusterProfiles", {
        "type": "object",
        "if": {"minProperties": 1},
        "then": configuration.reference("ClusterProfiles"),
    }),
    ("virtualNode.kubelet.servingCertificate", configuration.choices(KubeletConfig, "servingCertificate")),
    ("virtualNode.kubelet.drainTimeout", {"type": "integer", "minimum": 0}),
    ("webhook.failurePolicy", _one_of("Fail", "Ignore")),
    ("webhook.timeoutSeconds", {"type": "integer", "minimum": 1, "maximum": 30}),
    ("webhook.tls.caBundle", {"type": "string", "pattern": "^[A-Za-z0-9+/=]*$"}),
    ("descheduler.policy", policy.POLICY),
    ("descheduler.virtualNodes", _LIST_OF_STRINGS),
    ("descheduler.interval", _DURATION),
    ("descheduler.unschedulableThreshold", _DURATION),
    ("descheduler.moveRunningAfter", _DURATION),
    ("freezePeriod", _DURATION),
    ("swarm.goneAfter", _DURATION),
    ("swarm.namespace", {"type": "string", "pattern": f"^({_LABEL})?$", "maxLength": 63}),
    ("multiScheduler.scheduler.featureGates", {"type": "object", "additionalProperties": {"type": "boolean"}}),
    ("multiScheduler.agents", {"type": "array", "minItems": 1, "items": _AGENT}),
    ("multiScheduler.usage", configuration.reference("UsageConfig")),
    ("multiScheduler.upperUsage", configuration.reference("UsageConfig")),
    (
        "multiScheduler.clusterUsage",
        {"type": "object", "additionalProperties": configuration.reference("UsageConfig")},
    ),
    ("annotator.usage", configuration.reference("UsageConfig")),
    ("annotator.interval", _DURATION),
    ("annotator.threshold", {"type": "number", "minimum": 0, "maximum": 100}),
    ("multiScheduler.unknownNodes", configuration.choices(SchedulerConfig, "unknownNodes")),
    ("multiScheduler.tls.enabled", {"type": ["boolean", "null"]}),
    ("multiScheduler.tls.clientNames", _LIST_OF_STRINGS),
    ("multiScheduler.weight", {"type": "integer", "minimum": 1}),
    ("multiScheduler.scheduler.name", {**_OBJECT_NAME, "minLength": 1}),
    ("metrics.serviceMonitor.interval", {"type": "string", "pattern": "^([0-9]+(ms|s|m|h))+$"}),
    ("networkPolicy.*From", _OBJECTS),
    ("networkPolicy.egress", _OBJECTS),
    ("inspection.schedule", {"type": "string", "minLength": 9}),
    ("inspection.ignore", {"type": "array", "items": {"type": "string", "enum": list(CHECKS)}}),
    ("uninstall.timeout", {"type": "integer", "minimum": 1}),
    ("*.maxUnavailable", _COUNT),
    # Null means the default; an empty list means no constraints.
    ("*.topologySpreadConstraints", {"type": ["array", "null"], "items": _CONSTRAINT}),
    ("*.port", _PORT),
    ("*.replicas", {"type": "integer", "minimum": 0}),
    ("virtualNode.mode", configuration.choices(LeaderElectionConfig, "mode")),
    ("revisionHistoryLimit", {"type": "integer", "minimum": 0}),
    ("*.updateStrategy", _STRATEGY),
    ("extraObjects", {"type": "array", "items": {"type": "object", "required": ["apiVersion", "kind"]}}),
    ("*.serviceAccount.name", _OBJECT_NAME),
    ("*Secret", _OBJECT_NAME),
    ("*.secretName", _OBJECT_NAME),
    ("*SecretName", _OBJECT_NAME),
    ("*.affinity", _FREE),
    ("*SecurityContext", _FREE),
    ("*.resources", _FREE),
    ("*.nodeSelector", _STRINGS),
    ("*[lL]abels", _STRINGS),
    ("*[aA]nnotations", _STRINGS),
    ("*.tolerations", {"type": "array", "items": _TOLERATION}),
    ("*.extraArgs", _LIST_OF_STRINGS),
    ("*.extraEnv", {"type": "array", "items": _ENV}),
    ("*.extraVolume*", {"type": "array", "items": _NAMED}),
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
"""Path of a map → constraints between its values."""


def render() -> str:
    """Return the schema as JSON text."""
    return json.dumps(schema(), indent=2, ensure_ascii=False) + "\n"


def schema() -> dict[str, Any]:
    """Return the schema of the current values.yaml."""
    text = values.FILE.read_text(encoding="utf-8")
    root = _object(yaml.safe_load(text), "", values.comments(text))
    # For use as a subchart: Helm passes the parent's globals, and the parent enables or disables this chart.
    root["properties"]["global"]["additionalProperties"] = True
    root["properties"]["enabled"] = {"type": "boolean"}
    root["definitions"] = {**configuration.definitions(), **policy.definitions()}
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of virtual-node", **root}


def _object(content: Mapping[str, Any], prefix: str, meanings: Mapping[str, str]) -> dict[str, Any]:
    properties = {
        key: {
            **({"description": meanings[prefix + key]} if prefix + key in meanings else {}),
            **_fragment(prefix + key, value, meanings),
        }
        for key, value in content.items()
    }
    found = _map(properties)
    if required := [key for key, value in content.items() if _is_required(key, value)]:
        found["required"] = required
    if together := _TOGETHER.get(prefix.rstrip(".")):
        found["allOf"] = together
    return found


def _is_required(key: str, default: Any) -> bool:
    """Report whether templates need the key. ``key=null`` removes a key; ``--reuse-values`` does not add new ones."""
    is_needed = key not in values.WHOLE or key in {"agents", "podSecurityContext", "containerSecurityContext"}
    return bool(default) and is_needed and key != "global"


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
    raise ValueError(f"values.yaml: {path}: add a rule to hack/chart/schema.py")

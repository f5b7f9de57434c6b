"""Random values of the chart: valid ones, ones that Helm refuses, and ones that the API server refuses."""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

Values = dict[str, Any]

_CLUSTERS: tuple[Values, ...] = (
    {"name": "tokyo", "kubeconfig": "apiVersion: v1\nkind: Config\n"},
    {"name": "paris", "kubeconfigSecret": {"name": "paris"}},
    {"name": "paris", "kubeconfigSecret": {"name": "paris", "key": "admin.conf", "viewer": "v"}},
    {"name": "rio", "kubeconfigSecret": {"name": "rio"}, "config": {"nodeName": "vn-rio", "labels": {"a": "b"}}},
    {"name": "oslo", "kubeconfigSecret": {"name": "o"}, "config": {"nodes": [{"name": "o-1"}, {"name": "o-2"}]}},
)  # fmt: skip
_STRATEGIES: tuple[Any, ...] = (
    None,
    {"type": "Recreate"},
    {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "50%"}},
)
_OF_PODS: Mapping[str, tuple[Any, ...]] = {
    "replicas": (0, 1, 3),
    "podLabels": ({"example.com/a": "b"},),
    "podAnnotations": ({"example.com/a": "b"},),
    "updateStrategy": _STRATEGIES,
    "resources": ({}, {"requests": {"cpu": "10m"}}),
    "nodeSelector": ({"pool": "a"},),
    "tolerations": ([{"key": "a", "operator": "Exists"}],),
    "affinity": ({"podAntiAffinity": {}},),
    "topologySpreadConstraints": ([],),
    "podDisruptionBudget": ({"enabled": False}, {"maxUnavailable": "50%"}),
    "serviceAccount": ({"annotations": {"a": "b"}}, {"create": False, "name": "mine"}),
    "extraEnv": ([{"name": "A", "value": "b"}], [{"name": "POD_NAMESPACE", "value": "mine"}]),
    "extraVolumes": ([{"name": "extra", "emptyDir": {}}],),
}
"""Settings of every component, each with values other than its default."""
_OF_COMPONENT: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "virtualNode": {
        "enabled": (False,),
        "kubelet": (
            {"servingCertificate": "CSR", "approveServingCertificate": True},
            {"servingCertificate": "Files", "servingSecret": "serving"},
            {"drainTimeout": 0, "port": 10300},
        ),
        "config": ({"podSyncWorkers": 80, "kubelet": {"anonymousAuth": True}}, {"enableControllers": []}),
        "web": ({"enabled": False},),
        "metrics": ({"port": 9095},),
        "createCSIDriver": (False,),
    },
    "webhook": {
        "enabled": (False,),
        "failurePolicy": ("Ignore",),
        "excludedNamespaces": (["monitoring"],),
        "validateWorkloads": (False,),
        "tls": ({"secretName": "mine"},),
        "port": (8444,),
        "configurationAnnotations": ({"a": "b"},),
    },
    "descheduler": {
        "enabled": (False,),
        "dryRun": (True,),
        "virtualNodes": (["other"],),
        "interval": ("1m",),
    },
    "swarm": {"enabled": (True,), "goneAfter": ("2m",), "namespace": ("default",)},
    "multiScheduler": {
        "enabled": (False,),
        "bind": (False,),
        "unknownNodes": ("Pass",),
        "weight": (9,),
        "scheduler": ({"enabled": True, "name": "mine"},),
        "tls": ({"enabled": False}, {"clientNames": ["a"]}),
    },
}
_OF_ALL: Mapping[str, tuple[Any, ...]] = {
    "fullnameOverride": ("clusters",),
    "commonLabels": ({"example.com/team": "a"},),
    "commonAnnotations": ({"example.com/owner": "a"},),
    "clusterId": ("upper",),
    "imagePullSecrets": ([{"name": "registry"}],),
    "priorityClass": ({"create": True}, {"name": "system-cluster-critical"}),
    "rbac": ({"create": False},),
    "admissionPolicy": ({"enabled": False}, {"protectedNamespaces": ["operators"]}),
    "networkPolicy": ({"enabled": False}, {"metricsFrom": [{"namespaceSelector": {}}]}),
    "metrics": ({"service": {"enabled": False}}, {"dashboard": {"enabled": True}}),
    "freezePeriod": ("1m",),
    "revisionHistoryLimit": (0,),
    "extraObjects": (
        [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "mine"}, "data": {"a": "b"}}],
    ),
}
REFUSED_BY_HELM: tuple[Values, ...] = (
    {"replicas": 2},
    {"virtualNode": {"replica": 2}},
    {"virtualNode": {"config": {"podSyncWorker": 1}}},
    {"virtualNode": {"clusters": [{**_CLUSTERS[1], "config": {"lables": {}}}]}},
    {"virtualNode": {"clusters": [{**_CLUSTERS[1], "config": {"clientQps": "fast"}}]}},
    {"virtualNode": {"clusters": [_CLUSTERS[1], _CLUSTERS[2]]}},
    {"virtualNode": {"config": {"clusters": []}}},
    {"virtualNode": {"metrics": {"port": 8090}, "web": {"enabled": True}, "enabled": True}},
    {"webhook": {"timeoutSeconds": 31}},
    {"multiScheduler": {"agents": []}},
)
REFUSED_BY_SERVER: tuple[Values, ...] = (
    {"virtualNode": {"enabled": True, "podLabels": {"not a key": "a"}}},
    {"webhook": {"enabled": True, "extraVolumes": [{"name": "Not_A_Name", "emptyDir": {}}]}},
    {"descheduler": {"enabled": True, "resources": {"requests": {"cpu": "plenty"}}}},
    {"descheduler": {"enabled": True, "nodeSelector": {"a": "not a value"}}},
    {"extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "Not_A_Name"}}]},
)


def valid(chance: random.Random) -> Values:
    """Return values that the chart and the API server accept. Never empty, because Helm would reuse the previous values."""
    values: Values = {"log": {"level": chance.choice(["debug", "info"])}, **_some(chance, _OF_ALL, 3)}
    for component, own in _OF_COMPONENT.items():
        values[component] = _some(chance, {**_OF_PODS, **own}, 3)
    named = {one["name"]: one for one in chance.sample(_CLUSTERS, chance.randrange(4))}
    values["virtualNode"]["clusters"] = list(named.values())
    return values


def merged(values: Mapping[str, Any], more: Mapping[str, Any]) -> Values:
    """Return values merged with others, map by map, as Helm merges them."""
    found = copy.deepcopy(dict(values))
    for key, value in more.items():
        both_maps = isinstance(value, dict) and isinstance(found.get(key), dict)
        found[key] = merged(found[key], value) if both_maps else copy.deepcopy(value)
    return found


def _some(chance: random.Random, choices: Mapping[str, tuple[Any, ...]], most: int) -> Values:
    chosen = chance.sample(sorted(choices), chance.randrange(most + 1))
    return {name: copy.deepcopy(chance.choice(choices[name])) for name in chosen}

"""Random contents of a configuration file: valid ones, and what people and tools make of them by mistake."""

from __future__ import annotations

import json
import random
from typing import Any

from clusterset.config import API_VERSION, KIND, SERVICE_CONTROLLERS

Document = dict[str, Any]
CLUSTERS = ("one", "two")
_SELECTORS: tuple[Document, ...] = (
    {},
    {"matchLabels": {"app": "front"}},
    {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["front"]}]},
)
_TAINTS: tuple[Document, ...] = ({}, {"taints": []}, {"taints": [{"key": "team", "effect": "NoSchedule"}]})
_ALWAYS: tuple[list[str], ...] = ([], ["shop/*"], ["*/back"])


def valid(chance: random.Random) -> Document:
    """Return a valid configuration of the first cluster, or of both. Names of namespaces in them never change."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "enableControllers": [SERVICE_CONTROLLERS],
        "fullResyncPeriod": 0,
        "leaseDuration": 400,
        "statusInterval": 600,
        "pingInterval": 60,
        "limits": {"referencesPerPod": chance.choice([1, 100]), "watches": chance.choice([0, 200])},
        "services": {"always": chance.choice(_ALWAYS)},
        "clusters": [_cluster(chance, name) for name in CLUSTERS[: chance.choice([1, 2])]],
    }


def invalid(chance: random.Random, document: Document) -> str:
    """Return the text of an invalid file that was to be a valid configuration."""
    text = json.dumps(document)
    first = document["clusters"][0]
    wrong: list[Document] = [
        {"cluster": []},
        {"clusters": "one"},
        {"podSyncWorkers": 0},
        {"enableControllers": ["Everything"]},
        {"leaderElection": {"renewDeadline": 60}},
        {"clusters": [first, first]},
    ]
    of_cluster: list[Document] = [
        {"podSelectors": {}},
        {"podSelector": {"matchExpressions": [{"key": "app", "operator": "Like", "values": ["x"]}]}},
        {"namespaces": {"map": {"shop": "same", "bank": "same"}}},
        {"namespaces": {"map": {"shop": "kube-system"}}},
        {"policy": {"preset": "open"}},
        {"labels": ["zone"]},
        {"taints": [{"key": "team", "effect": "Never"}]},
        {"capacity": {"reserve": {"cpu": "a few"}}},
        {"volumes": {"deletionPolicy": "Perhaps"}},
    ]
    wrong += [{"clusters": [{**first, **change}]} for change in of_cluster]
    torn = ["", "{", text[: chance.randrange(1, len(text))], text.replace(KIND, "Pod"), "\0"]
    return chance.choice([*torn, *(json.dumps({**document, **change}) for change in wrong)])


def _cluster(chance: random.Random, name: str) -> Document:
    return {
        "name": name,
        "kubeconfig": f"/no/file/{name}",
        "nodeName": f"vn-{name}",
        "podSelector": chance.choice(_SELECTORS),
        "namespaces": {
            "allowed": chance.choice([[], ["shop"], ["b*"]]),
            "adopt": chance.choice([False, True, ["shop"]]),
        },
        "policy": chance.choice([{}, {"preset": "privileged"}, {"preset": "baseline"}]),
        "labels": chance.choice([{}, {"zone": "a"}, {"zone": "b", "disk": "ssd"}]),
        "capacity": {"reserve": chance.choice([{}, {"cpu": "1"}, {"memory": "50%", "cpu": "2"}])},
        "volumes": {"deletionPolicy": chance.choice(["Delete", "Retain"])},
        **chance.choice(_TAINTS),
    }

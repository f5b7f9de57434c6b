"""Errors of overrides in the configuration name the field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from controller_runtime.errors import ConfigError
from virtual_node.config.file import parse


def load(*overrides: Any) -> None:
    """Load a configuration of one cluster with these overrides."""
    cluster = {"name": "a", "kubeconfig": "k", "overrides": list(overrides)}
    document = {
        "apiVersion": "virtual-node.io/v1alpha1",
        "kind": "VirtualNodeConfiguration",
        "clusters": [cluster],
    }
    parse(json.dumps(document))


def spec(**fields: Any) -> dict[str, Any]:
    """Return an override with a patch of the spec."""
    return {"name": "o", "patch": {"spec": fields}}


def container(**fields: Any) -> dict[str, Any]:
    """Return an override with a patch of all containers."""
    return spec(containers=[{"name": "*", **fields}])


def metadata(**fields: Any) -> dict[str, Any]:
    """Return an override with a patch of the metadata."""
    return {"name": "o", "patch": {"metadata": fields}}


def rewrite(source: Any, to: Any) -> dict[str, Any]:
    """Return an override with a rewrite of images."""
    return {"name": "o", "images": [{"from": source, "to": to}]}


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ({}, "name"),
        ({"name": "a,b"}, "overrides[0].name"),
        ({"name": "o", "namespaces": "all"}, "overrides[0].namespaces"),
        ({"name": "o", "podSelector": {"app": "web"}}, "overrides[0].podSelector"),
        ({"name": "o", "podSelector": {"matchLabels": 5}}, "overrides[0].podSelector"),
        ({"name": "o", "podSelector": {"matchExpressions": [{"key": "a", "operator": "in"}]}}, "podSelector"),
        (rewrite("nginx", "m.example"), "images[0].from"),
        (rewrite("index.docker.io/", "m.example/"), "images[0].from"),
        (rewrite("Quay.io/", "m.example/"), "images[0].from"),
        (rewrite("docker.io/", "m.example"), "images[0]"),
        (rewrite("docker.io/", "mirror/"), "images[0].to"),
        (rewrite("docker.io/", "m.example/A/"), "images[0].to"),
        (rewrite("", ""), "images[0].from"),
        (rewrite(5, 6), "images[0].from"),
        (metadata(name="x"), "patch.metadata"),
        (metadata(namespace="x"), "patch.metadata"),
        (metadata(finalizers=["x"]), "patch.metadata"),
        (metadata(labels={"virtual-node.io/upper-uid": "x"}), "labels[virtual-node.io/upper-uid]"),
        (metadata(labels={"virtual-pod": None}), "labels[virtual-pod]"),
        (metadata(labels={"a b": "x"}), "labels[a b]"),
        (metadata(labels={"a": "b c"}), "labels[a]"),
        (metadata(labels={"a": 1e300}), "labels"),
        (metadata(annotations={"x.virtual-node.io/y": "x"}), "annotations[x.virtual-node.io/y]"),
        (metadata(annotations={"clusterSelector": "{}"}), "annotations[clusterSelector]"),
        (spec(nodeName="n"), "patch.spec"),
        (spec(serviceAccountName="admin"), "patch.spec"),
        (spec(automountServiceAccountToken=True), "patch.spec"),
        (spec(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "patch.spec"),
        (spec(hostNetwork=True), "patch.spec"),
        (spec(ephemeralContainers=[]), "patch.spec"),
        (spec(containers=None), "patch.spec.containers"),
        (spec(**{"$patch": "replace"}), "patch.spec"),
        (spec(**{"$setElementOrder/containers": []}), "$setElementOrder/containers"),
        (spec(nodeSelector={"a": "b c"}), "nodeSelector[a]"),
        (spec(nodeSelector={"a/b/c": "d"}), "nodeSelector[a/b/c]"),
        (spec(tolerations=[{"operator": "Equal"}]), "tolerations[0].key"),
        (spec(tolerations=[{"key": "a", "operator": "Exists", "value": "b"}]), "tolerations[0].value"),
        (
            {"name": "o", "tolerations": [{"key": "a", "tolerationSeconds": 5}]},
            "tolerations[0].tolerationSeconds",
        ),
        (spec(tolerations=[{"key": "a", "tolerationSeconds": 10**400}]), "tolerationSeconds"),
        (spec(imagePullSecrets=[{"name": "../x"}]), "imagePullSecrets"),
        (container(volumeMounts=[]), "patch.spec.containers"),
        (container(ports=[]), "patch.spec.containers"),
        (container(**{"$patch": "delete"}), "patch.spec.containers"),
        (spec(containers=[{"name": ""}]), "containers[0].name"),
        (container(env=[{"name": "A", "value": 5}]), "env"),
        (container(env=[{"name": "A=B", "value": "5"}]), "env[0].name"),
        (container(env=[{"name": "A", "$patch": "replace"}]), "env"),
        (container(env=[{"name": "A", "$patch": "delete", "value": "x"}]), "env[0]"),
        (container(env=[{"name": "A", "value": "x", "valueFrom": {}}]), "env[0].valueFrom"),
        (
            container(env=[{"name": "A", "valueFrom": {"secretKeyRef": {"name": "", "key": "k"}}}]),
            "env[0].valueFrom",
        ),
        (container(resources={"limits": {"cpu": "much"}}), "resources.limits.cpu"),
        (container(resources={"limits": {"cpu": "-1"}}), "resources.limits.cpu"),
        (container(resources={"requests": {"cpu": 0.5}}), "requests"),
        (container(resources={"requests": {"cpu": 10**400}}), "requests"),
    ],
)
def test_an_error_names_the_field(override, field):
    """Fields that an override must not change are unknown fields."""
    with pytest.raises(ConfigError) as found:
        load(override)
    assert field in str(found.value)
    assert len(str(found.value)) < 1000


def test_names_are_unique_and_few():
    """The names of applied overrides are listed on the lower pod."""
    with pytest.raises(ConfigError, match=r"overrides\[1\]\.name: 'o' is there twice"):
        load({"name": "o"}, {"name": "o"})
    with pytest.raises(ConfigError, match="at most 100"):
        load(*({"name": f"o-{number}"} for number in range(101)))


def test_a_complete_override_is_valid():
    """Every kind of change."""
    load(
        {
            "name": "all",
            "namespaces": ["shop", "ci-*"],
            "podSelector": {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["b"]}]},
            "images": [
                {"from": "docker.io/", "to": "m.example:5000/hub/"},
                {"from": "quay.io/team/app", "to": "docker.io/team/app"},
                {"from": "localhost:5000", "to": "m.example"},
            ],
            "tolerations": [
                {"operator": "Exists"},
                {"key": "a.example/b", "value": "c", "effect": "NoSchedule"},
            ],
            "patch": {
                "metadata": {"labels": {"a": "b", "c": None}, "annotations": {"Example.com/A": "any text"}},
                "spec": {
                    "containers": [
                        {
                            "name": "*",
                            "image": "m.example/x",
                            "imagePullPolicy": "Always",
                            "command": ["sh"],
                            "args": ["-c", "true"],
                            "env": [
                                {"name": "A"},
                                {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
                                {"name": "C", "$patch": "delete"},
                            ],
                            "resources": {"limits": {"cpu": 1, "memory": "1Gi"}, "requests": {"cpu": None}},
                            "securityContext": {"readOnlyRootFilesystem": True},
                        }
                    ],
                    "nodeSelector": {"pool": "a", "disk": None},
                    "tolerations": [{"key": "a", "effect": "NoExecute", "tolerationSeconds": 5}],
                    "imagePullSecrets": [{"name": "mirror"}],
                    "dnsPolicy": "None",
                    "dnsConfig": {"nameservers": ["10.0.0.1"]},
                },
            },
        }
    )

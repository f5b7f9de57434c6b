"""Overrides of a pod: which apply, and what they change."""

from __future__ import annotations

import copy
import time
from typing import Any

import pytest

from clusterset.model.overrides import Override, OverrideSet, applied
from controller_runtime.apimachinery.decoding import convert

POD: dict[str, Any] = {
    "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web"}, "annotations": {"a": "1"}},
    "spec": {
        "containers": [
            {
                "name": "app",
                "image": "nginx:1",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {}}}],
                "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
                "securityContext": {"runAsUser": 1},
            },
            {"name": "sidecar", "image": "quay.io/team/proxy:1"},
        ],
        "initContainers": [{"name": "init", "image": "busybox"}],
        "nodeSelector": {"disk": "ssd"},
        "tolerations": [{"key": "own", "operator": "Exists"}],
        "volumes": [{"name": "data", "image": {"reference": "team/data:1", "pullPolicy": "Always"}}],
        "imagePullSecrets": [{"name": "own"}],
    },
}


def change(*configured: dict[str, Any]) -> dict[str, Any]:
    """Return the pod after these overrides; the pod itself does not change."""
    before = copy.deepcopy(POD)
    overrides = OverrideSet([convert({"name": "o", **one}, Override) for one in configured])
    result = applied(POD, overrides.of(POD))
    assert before == POD
    return result


def container_of(pod: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the container, or init container, of that name."""
    spec = pod["spec"]
    return next(one for one in [*spec["containers"], *spec["initContainers"]] if one["name"] == name)


@pytest.mark.parametrize(
    ("where", "applies"),
    [
        ({}, True),
        ({"namespaces": ["shop"]}, True),
        ({"namespaces": ["ci-*", "sh*"]}, True),
        ({"namespaces": ["shop-2"]}, False),
        ({"podSelector": {"matchLabels": {"app": "web"}}}, True),
        ({"podSelector": {"matchLabels": {"app": "db"}}}, False),
        ({"podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}}, True),
        ({"namespaces": ["shop"], "podSelector": {"matchLabels": {"app": "db"}}}, False),
    ],
)
def test_an_override_applies_by_namespace_and_label(where, applies):
    """Both must match."""
    result = change({**where, "patch": {"metadata": {"labels": {"new": "yes"}}}})
    assert ("new" in result["metadata"]["labels"]) is applies


def test_images_of_all_kinds_are_rewritten():
    """Containers, init containers and image volumes."""
    result = change({"images": [{"from": "docker.io/", "to": "m.example/"}]})
    images = {name: container_of(result, name)["image"] for name in ("app", "sidecar", "init")}
    assert images == {
        "app": "m.example/library/nginx:1",
        "sidecar": "quay.io/team/proxy:1",
        "init": "m.example/library/busybox",
    }
    assert result["spec"]["volumes"][0]["image"] == {
        "reference": "m.example/team/data:1",
        "pullPolicy": "Always",
    }


@pytest.mark.parametrize(
    ("patch", "field", "value"),
    [
        ({"nodeSelector": {"pool": "a"}}, "nodeSelector", {"disk": "ssd", "pool": "a"}),
        ({"nodeSelector": {"disk": None}}, "nodeSelector", {}),
        ({"tolerations": [{"key": "t"}]}, "tolerations", [{"key": "t"}]),
        ({"tolerations": []}, "tolerations", []),
        ({"imagePullSecrets": [{"name": "m"}]}, "imagePullSecrets", [{"name": "m"}, {"name": "own"}]),
        ({"priorityClassName": "high"}, "priorityClassName", "high"),
        ({"securityContext": {"fsGroup": 1}}, "securityContext", {"fsGroup": 1}),
        ({}, "nodeSelector", {"disk": "ssd"}),
    ],
)
def test_the_spec_is_patched_as_the_api_does(patch, field, value):
    """Maps merge, lists with a merge key merge, other lists are replaced."""
    assert change({"patch": {"spec": patch}})["spec"][field] == value


def test_containers_are_patched_by_name():
    """``*`` is every container of its list, and a name that the pod does not have adds no container."""
    result = change(
        {
            "patch": {
                "spec": {
                    "containers": [
                        {"name": "*", "env": [{"name": "A", "value": "2"}, {"name": "NEW", "value": "x"}]},
                        {
                            "name": "app",
                            "resources": {"requests": {"cpu": 2, "memory": None}, "limits": {"cpu": "2"}},
                        },
                        {"name": "absent", "image": "evil"},
                    ]
                }
            }
        }
    )
    app, sidecar = result["spec"]["containers"]
    assert {one["name"]: one.get("value") for one in app["env"]} == {"A": "2", "B": None, "NEW": "x"}
    assert app["resources"] == {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    assert app["securityContext"] == {"runAsUser": 1}
    assert sidecar == {
        "name": "sidecar",
        "image": "quay.io/team/proxy:1",
        "env": [{"name": "A", "value": "2"}, {"name": "NEW", "value": "x"}],
    }
    assert "env" not in container_of(result, "init")


@pytest.mark.parametrize(
    ("variable", "found"),
    [
        ({"name": "B", "value": "2"}, {"name": "B", "value": "2"}),
        (
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "A", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ),
        (
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
        ),
        (
            {"name": "NEW", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            {"name": "NEW", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        ),
        ({"name": "A", "$patch": "delete"}, None),
        ({"name": "absent", "$patch": "delete"}, None),
    ],
)
def test_a_variable_is_replaced_as_a_whole(variable, found):
    """A variable with value and valueFrom would be refused by the API server."""
    result = change({"patch": {"spec": {"containers": [{"name": "app", "env": [variable]}]}}})
    variables = container_of(result, "app")["env"]
    assert next((one for one in variables if one["name"] == variable["name"]), None) == found


def test_tolerations_are_added_to_those_of_the_pod():
    """Each once."""
    own, added = {"key": "own", "operator": "Exists"}, {"key": "added", "effect": "NoSchedule"}
    assert change({"tolerations": [own, added]})["spec"]["tolerations"] == [own, added]


def test_overrides_apply_in_order():
    """The last one takes precedence, and an override does not rewrite the image in its own patch."""
    rewrite = {"images": [{"from": "docker.io/", "to": "m.example/"}]}
    by_patch = {"patch": {"spec": {"containers": [{"name": "app", "image": "nginx:2"}]}}}
    assert container_of(change({**rewrite, **by_patch}), "app")["image"] == "nginx:2"
    assert container_of(change(by_patch, rewrite), "app")["image"] == "m.example/library/nginx:2"
    assert container_of(change(rewrite, by_patch), "app")["image"] == "nginx:2"


def test_pull_secret_without_name_is_kept():
    """API servers accept it and store it without the field, so any user can create such a pod."""
    pod = {
        "metadata": {"namespace": "shop"},
        "spec": {"containers": [], "imagePullSecrets": [{}, {"name": "own"}]},
    }
    override = OverrideSet(
        [convert({"name": "o", "patch": {"spec": {"imagePullSecrets": [{"name": "m"}]}}}, Override)]
    )
    assert applied(pod, override.of(pod))["spec"]["imagePullSecrets"] == [{"name": "m"}, {}, {"name": "own"}]


def test_a_pod_with_thousands_of_variables_is_changed_quickly():
    """A user can write as many variables as fit into an object; applying an override blocks the process."""
    many = [{"name": f"V{number}"} for number in range(20_000)]
    app = {"name": "app", "env": [*many, {"name": "A", "value": "1"}]}
    pod = {"metadata": {"namespace": "shop"}, "spec": {"containers": [app]}}
    container = {"name": "app", "env": [{"name": "A", "value": "2"}]}
    override = OverrideSet([convert({"name": "o", "patch": {"spec": {"containers": [container]}}}, Override)])
    before = time.process_time()
    changed = applied(pod, override.of(pod))["spec"]["containers"][0]["env"]
    assert time.process_time() - before < 2  # quadratic: 40 s
    assert changed == [*many, {"name": "A", "value": "2"}]

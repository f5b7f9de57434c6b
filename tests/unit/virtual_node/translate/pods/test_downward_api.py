"""The downward API: the pod reads the upper cluster's values."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.policy.copied_keys import KeyPatterns
from virtual_node.translate.base.ownership import Owner
from virtual_node.translate.base.view import PodOptions
from virtual_node.translate.pods import downward_api, lower_pod

ZONE = "topology.kubernetes.io/zone"
UPPER: dict[str, Any] = {
    "metadata": {
        "name": "web",
        "namespace": "shop",
        "uid": "u-1",
        "labels": {"app": "web", "queue": "gold", ZONE: "z-virtual"},
        "annotations": {"note": 'say "hi"\nthere', names.ANNOTATION_LOWER_UID: "l-1"},
    },
    "spec": {
        "nodeName": "virtual",
        "serviceAccountName": "robot",
        "containers": [{"name": "c", "image": "i"}],
    },
}
OPTIONS = PodOptions(
    owner=Owner(cluster_id="upper", node_name="virtual"),
    ignore_labels=KeyPatterns(("queue",)),
    ignore_annotations=KeyPatterns(("example.com/*",)),
    namespace_map=lambda namespace: f"u1-{namespace}",
)


STAYS = lower_pod.stays_above(UPPER, OPTIONS)


def _reference(path: str) -> dict[str, Any]:
    return {"name": "X", "valueFrom": {"fieldRef": {"fieldPath": path}}}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("metadata.uid", "u-1"),
        ("metadata.namespace", "shop"),
        ("spec.nodeName", "virtual"),
        ("spec.serviceAccountName", "robot"),
        ("metadata.labels['queue']", "gold"),
        (f"metadata.labels['{ZONE}']", "z-virtual"),
        ("metadata.labels['topology.kubernetes.io/region']", ""),
        ("metadata.annotations['virtual-node.io/lower-uid']", "l-1"),
    ],
)
def test_different_fields_get_the_upper_value(path, value):
    """The lower kubelet has another value."""
    assert downward_api.literal(_reference(path), UPPER, STAYS) == {"name": "X", "value": value}


def test_a_field_with_the_text_of_a_reference_is_not_expanded():
    """A kubelet expands references in literal values only, and a field has the value of its annotation."""
    key = "example.com/price"
    upper = {**UPPER, "metadata": {**UPPER["metadata"], "annotations": {key: "$(HOME) costs $5, $$6, $$(X)"}}}
    found = downward_api.literal(_reference(f"metadata.annotations['{key}']"), upper, STAYS)
    assert found == {"name": "X", "value": "$$(HOME) costs $$5, $$$$6, $$$$(X)"}


@pytest.mark.parametrize(
    "path",
    ["metadata.name", "status.podIP", "status.podIPs", "status.hostIP", "metadata.labels['app']",
     "metadata.annotations['note']"],
)  # fmt: skip
def test_equal_fields_are_left_to_the_kubelet(path):
    """It reads the current value each time a container starts."""
    assert downward_api.literal(_reference(path), UPPER, STAYS) == _reference(path)


def test_other_sources_are_left_alone():
    """Keys of ConfigMaps and resources are no fields."""
    variable = {"name": "X", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu"}}}
    assert downward_api.literal(variable, UPPER) is variable


@pytest.mark.parametrize("kind", ["downwardAPI", "projected"])
def test_volume_items_refer_to_annotations_with_the_upper_values(kind):
    """Files follow annotations, so they follow the upper labels."""
    items = [
        {"path": "labels", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.labels"}},
        {"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}},
        {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}},
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "zone", "fieldRef": {"fieldPath": f"metadata.labels['{ZONE}']"}},
        {"path": "region", "fieldRef": {"fieldPath": "metadata.labels['topology.kubernetes.io/region']"}},
        {"path": "queue", "fieldRef": {"fieldPath": "metadata.labels['queue']"}},
        {"path": "app", "fieldRef": {"fieldPath": "metadata.labels['app']"}},
        {"path": "cpu", "resourceFieldRef": {"resource": "limits.cpu", "containerName": "c"}},
    ]
    source: dict[str, Any] = {"downwardAPI": {"items": items, "defaultMode": 420}}
    volume = {"name": "info", **(source if kind == "downwardAPI" else {"projected": {"sources": [source]}})}
    upper = {**UPPER, "spec": {**UPPER["spec"], "volumes": [volume]}}
    lower = lower_pod.lower_pod(upper, OPTIONS)
    (written,) = lower["spec"]["volumes"]
    inner = written[kind] if kind == "downwardAPI" else written["projected"]["sources"][0]["downwardAPI"]
    annotations = lower["metadata"]["annotations"]
    paths = {item["path"]: item.get("fieldRef", {}).get("fieldPath") for item in inner["items"]}
    assert inner["defaultMode"] == 420
    assert paths["name"] == "metadata.name"
    assert paths["cpu"] is None
    told = {
        path: annotations[where.removeprefix("metadata.annotations['").removesuffix("']")]
        for path, where in paths.items()
        if where and where.startswith("metadata.annotations")
    }
    assert told == {
        "labels": f'app="web"\nqueue="gold"\n{ZONE}="z-virtual"',
        "uid": "u-1",
        "namespace": "shop",
        "zone": "z-virtual",
        "queue": "gold",
    }
    assert paths["region"] == "metadata.labels['topology.kubernetes.io/region']"
    assert paths["app"] == "metadata.labels['app']"
    assert ZONE not in lower["metadata"]["labels"]


def test_all_annotations_in_a_file_are_the_upper_ones():
    """Without those of the virtual node, in Go's quoting."""
    item = {"path": "a", "fieldRef": {"fieldPath": "metadata.annotations"}}
    volume = {"name": "info", "downwardAPI": {"items": [item]}}
    _, annotations = downward_api.volumes([volume], UPPER)
    assert annotations == {downward_api.ANNOTATION_ANNOTATIONS: r'note="say \"hi\"\nthere"'}


def test_huge_annotations_are_left_to_the_lower_kubelet():
    """A copy would exceed the object size limit."""
    upper = {**UPPER, "metadata": {**UPPER["metadata"], "annotations": {"big": "x" * 200_000}}}
    item = {"path": "a", "fieldRef": {"fieldPath": "metadata.annotations"}}
    rewritten, annotations = downward_api.volumes([{"name": "v", "downwardAPI": {"items": [item]}}], upper)
    assert annotations == {}
    assert rewritten[0]["downwardAPI"]["items"] == [item]


@pytest.mark.parametrize(
    "text", ["", "plain", 'q"uote', "back\\slash", "tab\tnew\n", "\x00\x7f", "żółw", "\u200b", "😀"]
)
def test_quoting_is_gos(text):
    """JSON agrees with Go on all tested characters."""
    quoted = downward_api.quote(text)
    assert quoted.startswith('"')
    assert quoted.isprintable()
    if "\\x" not in quoted:
        assert json.loads(quoted) == text


def test_ignored_labels_and_annotations_stay_in_the_upper_cluster_but_reach_the_container():
    """A variable becomes a literal, and a file reads an annotation of ours."""
    upper = json.loads(json.dumps(UPPER))
    upper["metadata"]["annotations"]["example.com/role"] = "leader"
    paths = [
        "metadata.annotations['example.com/role']",
        "metadata.labels['queue']",
        "metadata.labels['none']",
    ]
    upper["spec"]["containers"][0]["env"] = [_reference(path) for path in paths[:2]]
    items = [{"path": f"f{number}", "fieldRef": {"fieldPath": path}} for number, path in enumerate(paths)]
    upper["spec"]["volumes"] = [{"name": "v", "downwardAPI": {"items": items}}]
    lower = lower_pod.lower_pod(upper, OPTIONS)
    annotations = lower["metadata"]["annotations"]
    assert "example.com/role" not in annotations
    assert "queue" not in lower["metadata"]["labels"]
    assert [one["value"] for one in lower["spec"]["containers"][0]["env"]] == ["leader", "gold"]
    read = [item["fieldRef"]["fieldPath"] for item in lower["spec"]["volumes"][0]["downwardAPI"]["items"]]
    keys = [path.removeprefix("metadata.annotations['").removesuffix("']") for path in read[:2]]
    assert [annotations[key] for key in keys] == ["leader", "gold"]
    assert all(key.startswith(downward_api.ANNOTATION_KEY) for key in keys)
    assert read[2] == "metadata.labels['none']"


@pytest.mark.parametrize(
    ("upper", "of_node", "source"),
    [
        ({}, {}, "lower"),
        ({ZONE: "z-virtual"}, {}, "upper"),
        ({}, {ZONE: "z-virtual"}, "upper"),  # an upper cluster that does not copy the label
        ({}, {"topology.kubernetes.io/region": "r"}, "lower"),
    ],
)
def test_a_virtual_node_without_a_zone_leaves_the_zone_to_the_lower_node(
    upper: dict[str, str], of_node: dict[str, str], source: str
):
    """Environment, volume and label have the same source."""
    is_of_lower_pod = source == "lower"
    pod = json.loads(json.dumps(UPPER))
    pod["metadata"]["labels"] = upper
    reference = _reference(f"metadata.labels['{ZONE}']")
    container: dict[str, Any] = pod["spec"]["containers"][0]
    container["env"] = [reference]
    item = {"path": "zone", "fieldRef": {"fieldPath": f"metadata.labels['{ZONE}']"}}
    pod["spec"]["volumes"] = [{"name": "info", "downwardAPI": {"items": [item]}}]
    pod["spec"]["ephemeralContainers"] = [{"name": "debug", "env": [reference]}]
    options = replace(OPTIONS, labels=of_node)
    spec = lower_pod.lower_pod(pod, options)["spec"]
    (debug,) = lower_pod.ephemeral_containers(pod, options)
    assert (spec["containers"][0]["env"] == [reference]) is is_of_lower_pod
    assert (debug["env"] == [reference]) is is_of_lower_pod
    assert (spec["volumes"][0]["downwardAPI"]["items"] == [item]) is is_of_lower_pod
    reported = downward_api.zones_to_report(upper, {ZONE: "z-real", "other": "x"}, of_node)
    assert reported == ({ZONE: "z-real"} if is_of_lower_pod else {})


def test_a_zone_that_is_no_label_value_is_not_reported():
    """The upper API server would refuse the status with it."""
    assert downward_api.zones_to_report({}, {ZONE: "not valid"}, {}) == {}

"""The fields that an API server did not keep, by its answer to the creation of a pod."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from clusterset.model.pod import spec_fields
from tests.pod_schema import placed, pod_fields, values_at
from virtual_node.translate.pods import lost_fields


def lost(sent: dict[str, Any], kept: dict[str, Any]) -> list[tuple[str, bool]]:
    """Return the lost fields, and whether the pod must not run without them."""
    return [(one.field, bool(one.consequence)) for one in lost_fields.lost_fields(sent, kept)]


def container(**fields: Any) -> dict[str, Any]:
    """Return a spec with one container."""
    return {"containers": [{"name": "app", "image": "i", **fields}]}


def volume(**fields: Any) -> dict[str, Any]:
    """Return a spec with one volume."""
    return {"volumes": [{"name": "v", **fields}]}


RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [1]}}]


@pytest.mark.parametrize(
    ("sent", "kept", "expected"),
    [
        ({"hostUsers": False}, {}, [("spec.hostUsers", True)]),
        ({"hostUsers": True}, {}, []),
        ({"hostUsers": False}, {"hostUsers": True}, []),
        ({"hostnameOverride": "h"}, {}, [("spec.hostnameOverride", False)]),
        ({"resources": {"limits": {"cpu": "1"}}}, {}, [("spec.resources", False)]),
        ({"resources": {"limits": {}}}, {}, []),
        (
            container(restartPolicyRules=RULES),
            container(),
            [("spec.containers[app].restartPolicyRules", True)],
        ),
        (
            {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}]},
            {"initContainers": [{"name": "proxy"}]},
            [("spec.initContainers[proxy].restartPolicy", True)],
        ),
        (
            container(livenessProbe={"httpGet": {"port": 80, "protocol": "H2C"}}),
            container(livenessProbe={"httpGet": {"port": 80, "path": "/", "scheme": "HTTP"}}),
            [("spec.containers[app].livenessProbe.httpGet.protocol", False)],
        ),
        (
            container(volumeMounts=[{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b", "bindMountOptions": ["noexec"]}]),
            container(volumeMounts=[{"name": "t", "mountPath": "/t"}, {"name": "v", "mountPath": "/b"}, {"name": "v", "mountPath": "/a"}]),
            [("spec.containers[app].volumeMounts[/b].bindMountOptions", True)],
        ),
        (volume(image={"reference": "r"}), volume(emptyDir={}), [("spec.volumes[v].image", True)]),
        (volume(future={"x": 1}), volume(emptyDir={}), [("spec.volumes[v].future", True)]),
        (volume(emptyDir={"mode": 0o700}), volume(emptyDir={}), [("spec.volumes[v].emptyDir.mode", True)]),
        (volume(emptyDir={"mode": 0}), volume(emptyDir={}), [("spec.volumes[v].emptyDir.mode", True)]),
        (volume(emptyDir={"mode": 0o777}), volume(emptyDir={}), []),
        (
            volume(projected={"sources": [{"podCertificate": {"signerName": "s"}}]}),
            volume(projected={"sources": [{}]}),
            [("spec.volumes[v].projected.sources[0].podCertificate", True)],
        ),
        (
            volume(secret={"secretName": "s", "defaultUser": 5}),
            volume(secret={"secretName": "s", "defaultMode": 420}),
            [("spec.volumes[v].secret.defaultUser", False)],
        ),
        (
            {"securityContext": {"supplementalGroupsPolicy": "Strict", "runAsUser": 1}},
            {},
            [("spec.securityContext.supplementalGroupsPolicy", True)],
        ),
        ({"securityContext": {"supplementalGroupsPolicy": "Merge"}}, {"securityContext": {}}, []),
        (
            container(lifecycle={"preStop": {"httpGet": {"port": 1, "protocol": "HTTP1"}}}),
            container(lifecycle={"preStop": {"httpGet": {"port": 1}}}),
            [],
        ),
        ({"futureField": {"kept": True}}, {}, [("spec.futureField", False)]),
        # What defaults, admission and the encoding of an API server change is no loss.
        ({"hostNetwork": False, "tolerations": [], "hostname": "", "nodeSelector": None}, {}, []),
        (container(image="i"), container(image="mirror/i"), []),
        (container(resources={"limits": {"cpu": "1"}}), container(resources={"limits": {"memory": "1Gi"}}), []),
        ({"nodeSelector": {"a": "b"}}, {"nodeSelector": {"c": "d"}}, []),
        (container(), {"containers": []}, []),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"operator": "Exists"}, {"key": "b"}]}, []),
        (
            container(env=[{"name": "A", "value": "1"}, {"name": "A", "valueFrom": {"fieldRef": {}}}]),
            container(env=[{"name": "A", "value": "1"}, {"name": "A", "valueFrom": {"fieldRef": {}}}]),
            [],
        ),
    ],
)  # fmt: skip
def test_lost_fields_are_those_that_were_sent_and_not_kept(
    sent: dict[str, Any], kept: dict[str, Any], expected: list[tuple[str, bool]]
):
    """List items are matched by name; values are not compared."""
    assert lost(sent, kept) == expected


def test_any_field_of_a_pod_that_is_dropped_is_reported():
    """Each field of the newest release, wherever it is. Missing keys of maps are not lost fields."""
    for field in pod_fields():
        above, _, name = field.path.rpartition(".")
        key = name.rstrip("[]{}")
        if not field.is_leaf or field.kind == "object" or key in {*lost_fields.MAPS, "name", "mountPath"}:
            continue
        sent = placed(field.path, False if field.path == "hostUsers" else field.value())
        kept = copy.deepcopy(sent)
        for holder in values_at({"spec": kept}, f"spec.{above}".rstrip(".")):
            for item in holder if isinstance(holder, list) else [holder]:
                del item[key]
        found = lost_fields.lost_fields(sent, kept)
        assert [one.path for one in found] == [field.plain], field.path


def test_maps_are_those_of_the_schema():
    """Their keys are chosen by users, so admission may replace them."""
    maps = {field.plain.rpartition(".")[2] for field in pod_fields() if field.path.endswith("{}")}
    assert maps == lost_fields.MAPS


def test_fields_that_a_pod_needs_are_known_before_it_is_sent():
    """So that further pods are refused without a request."""
    spec = {"hostUsers": False, "hostname": "h", **container(restartPolicyRules=RULES)}
    assert [field.path for field in lost_fields.needed(spec)] == [
        "hostUsers",
        "containers.restartPolicyRules",
    ]


def test_the_message_names_fields_and_what_to_do():
    """For a pod that runs, and for one that must not."""
    sent = {"hostUsers": False, "hostnameOverride": "h"}
    found = lost_fields.lost_fields(sent, {})
    assert lost_fields.message("b", found) == (
        "Lower cluster b drops fields without which the pod must not run: spec.hostUsers. Without spec.hostUsers, the "
        "containers would run in the user namespace of the node. Upgrade the lower cluster, turn the feature on there, or "
        "remove the fields from the pod"
    )
    assert lost_fields.message("b", found[1:]) == (
        "Lower cluster b has dropped fields of the pod, and runs it without them: spec.hostnameOverride. Its version of "
        "Kubernetes does not know them, their feature is off there, or its admission removes them"
    )


def test_each_field_that_must_arrive_travels():
    """A field that is not sent cannot be lost."""
    for path in spec_fields.MUST_ARRIVE:
        assert spec_fields.verdict(path.removesuffix(".*")) is spec_fields.Verdict.TRAVELS


def test_values_that_change_nothing_are_of_known_fields():
    """A wrong path would report a loss for each pod with a default of a newer API server."""
    assert spec_fields.SAME_AS_ABSENT.keys() <= {field.plain for field in pod_fields()}

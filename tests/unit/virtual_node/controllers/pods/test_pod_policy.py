"""What a lower cluster's policy forbids is neither created nor changed there; running pods continue."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from clusterset.config import IgnoreConfig
from clusterset.model import names
from clusterset.model.policy.config import AnnotationRules, ImageRules, LabelRules, Policy, Rules
from tests.unit.virtual_node.controllers.pod_controller_setup import (
    KEY,
    Scene,
    clusters,
    mirroring,
    pod,
    running,
)

pytestmark = pytest.mark.looptime
CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
ROLE = "iam.amazonaws.com/role"
GRANTING = [("labels", "aadpodidbinding"), ("annotations", ROLE)]
"""A field of the metadata, and a key in it that the default policy forbids."""
PRIVILEGED = {"name": "main", "image": "web:1", "securityContext": {"privileged": True}}
REGISTRY = Policy(images=ImageRules(allow=["docker.io/library/web:*"]))


def _annotated(**annotations: str) -> dict[str, Any]:
    body = pod("web", uid="u-1", nodeName="vn")
    body["metadata"]["annotations"] = annotations
    return body


def _condition(scene: Scene) -> dict[str, str]:
    found = scene.above()["status"].get("conditions") or ()
    return next((one for one in found if one["type"] == names.CONDITION_ADMITTED), {})


async def test_a_refused_pod_is_not_created_and_has_rule_limit_and_setting():
    """In the event and the condition; no namespace and no dependency is made for it."""
    async with running() as scene:
        scene.bind(hostNetwork=True, containers=[PRIVILEGED])
        await asyncio.sleep(10)
        assert not scene.is_below()
        assert scene.lower.asked("create", "namespaces") == []
        ((reason, message),) = scene.events
        assert reason == "NotMirrored"
        assert message == (
            "Lower cluster lower1 does not take the pod: privileged: spec.containers[main].securityContext.privileged "
            "is true, allowed: false (set by clusters[lower1].policy.preset, default baseline); hostNamespaces: "
            "spec.hostNetwork is true, allowed: none (set by clusters[lower1].policy.preset, default baseline)"
        )
        condition = _condition(scene)
        assert (condition["status"], condition["reason"], condition["message"]) == (
            "False",
            "NotAllowed",
            message,
        )


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        (_annotated(clusterSelector=json.dumps({"nodeSelector": {CONTROL_PLANE: ""}})), "controlPlane"),
        (_annotated(clusterSelector=json.dumps({"tolerations": [{"key": CONTROL_PLANE}]})), "controlPlane"),
        (pod("web", uid="u-1", nodeName="vn", tolerations=[{"key": CONTROL_PLANE}]), "controlPlane"),
        (_annotated(**{names.ANNOTATION_SCHEDULER_NAME: "bypass"}), "schedulerNames"),
        (pod("web", uid="u-1", nodeName="vn", priorityClassName="system-node-critical"), "priorityClasses"),
        (pod("web", uid="u-1", nodeName="vn", runtimeClassName="on-control-plane"), "runtimeClasses"),
        (_annotated(**{ROLE: "admin"}), "annotations"),
        (
            pod("web", uid="u-1", nodeName="vn", volumes=[{"name": "v", "csi": {"driver": "d.example.com"}}]),
            "csiDrivers",
        ),
    ],
)  # fmt: skip
async def test_the_lower_spec_is_checked(body, rule):
    """Annotations of a tenant become fields of the lower pod."""
    async with running() as scene:
        scene.upper.put("pods", body)
        await asyncio.sleep(10)
        assert not scene.is_below()
        assert f": {rule}: " in _condition(scene)["message"]


async def test_a_namespace_with_rules_of_its_own_gets_its_pods():
    """By the upper namespace; another one does not."""
    policy = Policy(namespaces={"sh*": Rules(preset="privileged"), "bank": Rules(preset="restricted")})
    async with running(policy=policy) as scene:
        scene.bind(hostNetwork=True)
        await asyncio.sleep(10)
        assert scene.below()["spec"]["hostNetwork"] is True


async def test_a_listed_class_is_kept_and_others_are_dropped():
    """A dropped class is no reason to refuse a pod."""
    async with running(policy=Policy(priority_classes=["gold"])) as scene:
        scene.bind(priorityClassName="gold")
        scene.bind("plain", uid="u-2", priorityClassName="silver")
        await asyncio.sleep(10)
        assert scene.below()["spec"]["priorityClassName"] == "gold"
        assert "priorityClassName" not in scene.below("plain")["spec"]


async def test_a_listed_service_account_is_kept_and_others_are_dropped():
    """By the rules of the upper namespace."""
    async with running(policy=Policy(namespaces={"shop": Rules(service_accounts=["web-*"])})) as scene:
        scene.bind(serviceAccountName="web-a")
        scene.bind("plain", uid="u-2", serviceAccountName="batch")
        await asyncio.sleep(10)
        assert scene.below()["spec"]["serviceAccountName"] == "web-a"
        assert "serviceAccountName" not in scene.below("plain")["spec"]


async def test_a_pod_that_tolerates_everything_is_kept_off_control_plane_nodes():
    """All other pods are unchanged."""
    async with running() as scene:
        scene.bind(tolerations=[{"operator": "Exists"}])
        scene.bind("plain", uid="u-2", tolerations=[{"key": "gpu", "operator": "Exists"}])
        await asyncio.sleep(10)
        required = scene.below()["spec"]["affinity"]["nodeAffinity"][
            "requiredDuringSchedulingIgnoredDuringExecution"
        ]
        (term,) = required["nodeSelectorTerms"]
        assert {"key": CONTROL_PLANE, "operator": "DoesNotExist"} in term["matchExpressions"]
        assert "affinity" not in scene.below("plain")["spec"]


async def test_running_pods_are_not_stopped_by_a_stricter_policy():
    """They keep their rights and follow other changes; only new fields are checked."""
    upper, lower = clusters()
    async with mirroring(Scene(upper, lower, policy=Policy(preset="privileged"))) as before:
        before.bind(hostPID=True, containers=[PRIVILEGED])
        await asyncio.sleep(10)
        uid = before.below()["metadata"]["uid"]
    async with mirroring(Scene(upper, lower, policy=Policy(preset="restricted"))) as after:
        await asyncio.sleep(700)
        assert after.below()["metadata"]["uid"] == uid
        upper.change("pods", KEY, metadata={"labels": {"tier": "a"}, "generation": 2}, spec={
            "containers": [{**PRIVILEGED, "image": "web:2"}],
        })  # fmt: skip
        await asyncio.sleep(10)
        below = after.below()
        assert below["metadata"]["uid"] == uid
        assert below["metadata"]["labels"]["tier"] == "a"
        assert below["spec"]["containers"][0]["image"] == "web:2"
        assert after.events == []
        assert lower.asked("delete", "pods") == []


def _debugger(name: str, **context: Any) -> dict[str, Any]:
    return {"name": name, "image": "web:1", "securityContext": context}


async def test_a_privileged_debug_container_is_refused_and_an_ordinary_one_runs():
    """``kubectl debug --profile=sysadmin``; users cannot remove a debug container, so it must not block others."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        root = _debugger("root", privileged=True)
        scene.upper.change("pods", KEY, spec={"ephemeralContainers": [root]})
        await asyncio.sleep(10)
        assert "ephemeralContainers" not in scene.below()["spec"]
        ((reason, message),) = scene.events
        assert reason == "UpdateRefused"
        assert message == (
            "Lower cluster lower1: its policy does not allow the change: privileged: "
            "spec.ephemeralContainers[root].securityContext.privileged is true, allowed: false "
            "(set by clusters[lower1].policy.preset, default baseline)"
        )
        plain = _debugger("plain")
        scene.upper.change("pods", KEY, spec={"ephemeralContainers": [root, plain]})
        await asyncio.sleep(10)
        assert [one["name"] for one in scene.below()["spec"]["ephemeralContainers"]] == ["plain"]
        assert len(scene.events) == 1


async def test_a_forbidden_image_is_not_set_in_a_running_pod():
    """Labels still follow, and so does a later image that is allowed."""
    async with running(policy=REGISTRY) as scene:
        scene.bind()
        await asyncio.sleep(10)

        def wanted(image: str, **labels: str) -> None:
            generation = scene.above()["metadata"]["generation"] + 1
            containers = [{"name": "main", "image": image}]
            metadata = {"generation": generation, "labels": labels}
            scene.upper.change("pods", KEY, spec={"containers": containers}, metadata=metadata)

        wanted("evil.example.com/web:1", tier="a")
        await asyncio.sleep(10)
        assert scene.below()["spec"]["containers"][0]["image"] == "web:1"
        assert scene.below()["metadata"]["labels"]["tier"] == "a"
        ((reason, message),) = scene.events
        assert reason == "UpdateRefused"
        assert (
            "images: spec.containers[main].image is evil.example.com/web:1, allowed: docker.io/library/web:* "
            in message
        )
        wanted("web:2")
        await asyncio.sleep(10)
        assert scene.below()["spec"]["containers"][0]["image"] == "web:2"
        assert len(scene.events) == 1


async def test_a_refused_image_is_retried_under_another_policy():
    """It was not recorded as requested."""
    upper, lower = clusters()
    async with mirroring(Scene(upper, lower, policy=REGISTRY)) as strict:
        strict.bind()
        await asyncio.sleep(10)
        containers = [{"name": "main", "image": "other:1"}]
        upper.change("pods", KEY, spec={"containers": containers}, metadata={"generation": 2})
        await asyncio.sleep(10)
        assert strict.below()["spec"]["containers"][0]["image"] == "web:1"
    async with mirroring(Scene(upper, lower)) as lax:
        await asyncio.sleep(10)
        assert lax.below()["spec"]["containers"][0]["image"] == "other:1"


async def test_a_forbidden_toleration_is_not_added_to_a_running_pod():
    """Kubernetes lets users add some, and the pod would stay on a node that is being drained."""
    async with running(policy=Policy(toleration_keys=["gpu"])) as scene:
        scene.bind(tolerations=[{"key": "gpu", "operator": "Exists"}])
        await asyncio.sleep(10)
        added = [{"key": "gpu", "operator": "Exists"}, {"key": "drain", "operator": "Exists"}]
        scene.upper.change("pods", KEY, spec={"tolerations": added}, metadata={"generation": 2})
        await asyncio.sleep(10)
        assert [one["key"] for one in scene.below()["spec"]["tolerations"]] == ["gpu"]
        assert [reason for reason, _ in scene.events] == ["UpdateRefused"]


@pytest.mark.parametrize("node", ["", "worker"])
async def test_a_toleration_of_every_taint_does_not_bring_a_waiting_pod_to_control_plane_nodes(node):
    """A pod without a node has no affinity against them and cannot get one later; a scheduled pod stays on its node."""
    async with running() as scene:
        pinned = {"nodeSelector": {"kubernetes.io/hostname": "control-plane-1"}}
        scene.upper.put("pods", _annotated(clusterSelector=json.dumps(pinned)))
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, spec={"nodeName": node or None})
        everything = json.dumps({**pinned, "tolerations": [{"operator": "Exists"}]})
        scene.upper.change("pods", KEY, metadata={"annotations": {"clusterSelector": everything}})
        await asyncio.sleep(10)
        assert bool(scene.below()["spec"].get("tolerations")) == bool(node)
        assert [reason for reason, _ in scene.events] == ([] if node else ["UpdateRefused"])


async def test_a_refused_pod_is_created_when_its_rights_are_granted():
    """By another policy, without a change of the pod."""
    upper, lower = clusters()
    async with mirroring(Scene(upper, lower)) as strict:
        strict.bind(hostNetwork=True)
        await asyncio.sleep(10)
        assert not strict.is_below()
    async with mirroring(Scene(upper, lower, policy=Policy(host_namespaces=["hostNetwork"]))) as lax:
        await asyncio.sleep(10)
        assert lax.is_below()


def _annotate(scene: Scene, **annotations: str | None) -> None:
    scene.upper.change("pods", KEY, metadata={"annotations": annotations})


@pytest.mark.parametrize(("field", "key"), GRANTING)
async def test_a_forbidden_key_is_not_set_in_a_running_pod(field: str, key: str):
    """Other keys and an image of the same update are."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.upper.change(
            "pods",
            KEY,
            metadata={field: {key: "admin", "team": "a"}, "generation": 2},
            spec={"containers": [{"name": "main", "image": "web:2"}]},
        )
        await asyncio.sleep(100)
        below = scene.below()
        assert key not in below["metadata"][field]
        assert below["metadata"][field]["team"] == "a"
        assert below["spec"]["containers"][0]["image"] == "web:2"
        ((reason, message),) = scene.events
        assert reason == "UpdateRefused"
        assert message == (
            f"Lower cluster lower1: its policy does not allow the change: {field}: metadata.{field}[{key}] is admin, denied by "
            f"pattern {key.replace('/role', '/*')} (set by clusters[lower1].policy.{field}.deny, default)"
        )


async def test_an_allowed_annotation_is_set_beside_a_forbidden_label():
    """Both are in one patch, and what is recorded as sent has only the allowed key."""
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        wanted = {"labels": {"aadpodidbinding": "admin"}, "annotations": {"team": "a"}}
        scene.upper.change("pods", KEY, metadata=wanted)
        await asyncio.sleep(100)
        annotations = scene.below()["metadata"]["annotations"]
        assert annotations["team"] == "a"
        assert "team" in annotations[names.ANNOTATION_APPLIED]
        assert "aadpodidbinding" not in annotations[names.ANNOTATION_APPLIED]


async def test_a_lower_annotation_survives_a_refused_one_of_the_same_key():
    """The refused one is not recorded as ours, so its removal in the upper cluster removes nothing."""
    status = "k8s.v1.cni.cncf.io/network-status"
    async with running() as scene:
        scene.bind()
        await asyncio.sleep(10)
        scene.lower.change("pods", KEY, metadata={"annotations": {status: "lower"}})
        for value in ("upper", None):
            _annotate(scene, **{status: value})
            await asyncio.sleep(100)
            assert scene.below()["metadata"]["annotations"][status] == "lower"


@pytest.mark.parametrize(("field", "key"), GRANTING)
async def test_an_earlier_key_stays_cannot_be_changed_and_can_be_removed(field: str, key: str):
    """The pod had it before the policy forbade it."""
    upper, lower = clusters()
    lax = Policy(labels=LabelRules(deny=[]), annotations=AnnotationRules(deny=[]))
    async with mirroring(Scene(upper, lower, policy=lax)) as before:
        body = pod("web", uid="u-1", nodeName="vn")
        body["metadata"][field] = {key: "reader"}
        before.upper.put("pods", body)
        await asyncio.sleep(10)
        assert before.below()["metadata"][field][key] == "reader"
    async with mirroring(Scene(upper, lower)) as after:
        await asyncio.sleep(10)
        assert after.events == []
        after.upper.change("pods", KEY, metadata={field: {key: "admin"}})
        await asyncio.sleep(10)
        assert after.below()["metadata"][field][key] == "reader"
        assert [reason for reason, _ in after.events] == ["UpdateRefused"]
        after.upper.change("pods", KEY, metadata={field: {key: None}})
        await asyncio.sleep(10)
        assert key not in after.below()["metadata"][field]


async def test_terms_that_name_labels_of_a_preset_apply_in_the_upper_cluster_only():
    """As JobSet's exclusive placement has them: the pod's own affinity would never be met without its label."""
    key = "jobset.sigs.k8s.io/job-key"
    selector = {"matchExpressions": [{"key": key, "operator": "In", "values": ["abc"]}]}
    term = {"topologyKey": names.LABEL_HOSTNAME, "labelSelector": selector}
    affinity = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    for ignore, carried in ((IgnoreConfig(), {"abc"}), (IgnoreConfig(presets=["jobset"]), set())):
        async with running(ignore=ignore) as scene:
            body = pod("web", uid="u-1", namespace="shop", nodeName="vn", affinity=affinity)
            body["metadata"]["labels"] = {key: "abc"}
            scene.upper.put("pods", body)
            await asyncio.sleep(5)
            lower = scene.below()
            assert {lower["metadata"]["labels"].get(key)} - {None} == carried
            assert ("affinity" in lower["spec"]) == bool(carried)

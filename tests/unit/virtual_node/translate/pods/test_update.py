"""Patches of a lower pod for changes of its upper pod."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from clusterset.model.policy.decision import violations
from controller_runtime.objects import from_dict
from tests.unit.virtual_node.translate.pods.pods import OPTIONS, upper_pod
from virtual_node.translate.base.metadata import left_as_changed
from virtual_node.translate.pods import lower_pod, update


def test_an_unchanged_pod_needs_no_patch():
    """Additions of others to the lower pod do not count."""
    pod = upper_pod()
    lower = lower_pod.lower_pod(pod, OPTIONS)
    lower["metadata"]["labels"]["sidecar.io/injected"] = "yes"
    lower["spec"]["containers"].append({"name": "sidecar", "image": "proxy:1"})
    lower["spec"]["tolerations"].append({"key": "node.kubernetes.io/not-ready", "operator": "Exists"})
    changes = update.pod_patch(lower, lower_pod.lower_pod(pod, OPTIONS), pod, OPTIONS)
    assert changes == update.PodChanges()


def test_allowed_changes_become_patches():
    """Image, labels set and removed, added toleration, resize and ephemeral containers."""
    before = upper_pod()
    lower = lower_pod.lower_pod(before, OPTIONS)
    after = upper_pod(
        ephemeralContainers=[{"name": "debug", "image": "tools"}],
        activeDeadlineSeconds=60,
    )
    after["metadata"]["labels"] = {"new": "label"}
    after["spec"]["containers"][0] |= {"image": "web:2", "resources": {"requests": {"cpu": "2"}}}
    after["spec"]["tolerations"].append({"key": "more", "operator": "Exists"})
    changes = update.pod_patch(lower, lower_pod.lower_pod(after, OPTIONS), after, OPTIONS)
    patch = changes.metadata_and_spec
    assert patch is not None
    assert patch["metadata"]["labels"] == {"new": "label", "app": None}
    assert patch["spec"]["containers"] == [{"name": "main", "image": "web:2"}]
    assert patch["spec"]["activeDeadlineSeconds"] == 60
    assert [entry["key"] for entry in patch["spec"]["tolerations"]] == ["gpu", "more"]
    assert changes.resize == {
        "spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": "2"}}}]}
    }
    assert changes.ephemeral_containers == {
        "spec": {"ephemeralContainers": [{"name": "debug", "image": "tools"}]}
    }


def test_changed_seconds_replace_those_of_a_toleration():
    """With both numbers, the lower node's taint would evict the pod after the lower one."""
    lost = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    before = upper_pod(tolerations=[{**lost, "tolerationSeconds": 300}, {"key": "gpu", "operator": "Exists"}])
    lower = lower_pod.lower_pod(before, OPTIONS)
    of_cluster = {"key": "node.kubernetes.io/memory-pressure", "operator": "Exists"}
    lower["spec"]["tolerations"].append(of_cluster)
    after = upper_pod(tolerations=[{**lost, "tolerationSeconds": 900}, {"key": "gpu", "operator": "Exists"}])
    changes = update.pod_patch(lower, lower_pod.lower_pod(after, OPTIONS), after, OPTIONS)
    assert changes.metadata_and_spec is not None
    tolerations = changes.metadata_and_spec["spec"]["tolerations"]
    assert [one["tolerationSeconds"] for one in tolerations if one["key"] == lost["key"]] == [900]
    assert of_cluster in tolerations
    assert {"key": "gpu", "operator": "Exists"} in tolerations
    assert len(tolerations) == 3


def test_pod_level_resources_are_resized_in_place():
    """KEP-5419: cpu and memory of the pod itself, like those of containers."""
    lower = lower_pod.lower_pod(upper_pod(resources={"limits": {"cpu": "1", "memory": "1Gi"}}), OPTIONS)
    after = upper_pod(resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    desired = lower_pod.lower_pod(after, OPTIONS)
    changes = update.pod_patch(lower, desired, after, OPTIONS)
    assert changes.resize == {"spec": {"resources": {"limits": {"cpu": "2"}}}}
    assert not update.is_already_requested(lower, desired)


def _pair() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a lower pod as its kubelet reports it, with what programs of the lower cluster add, and its upper pod."""
    upper = upper_pod()
    lower = lower_pod.lower_pod(upper, OPTIONS)
    lower["metadata"]["annotations"]["cni.example.com/podIP"] = "10.0.0.1"
    lower["spec"]["nodeName"] = "node-1"
    lower["metadata"] |= {"uid": "lower-1", "resourceVersion": "7"}
    return lower, upper


def _variants(whole: Any) -> Iterator[Any]:
    """Yield copies of a JSON value, each with one changed or missing part."""
    for place in whole if isinstance(whole, dict) else range(len(whole)):
        part = whole[place]
        others = (
            [*_variants(part)]
            if isinstance(part, (dict, list))
            else [f"{part}x" if isinstance(part, str) else 7]
        )
        for other in others:
            changed = copy.copy(whole)
            changed[place] = other
            yield changed
        if isinstance(whole, dict):
            yield {key: value for key, value in whole.items() if key != place}


def _result(lower: Any, upper: Any) -> Any:
    """Return what is compared of a pair; the type of the error if a field is missing that API servers always send."""
    try:
        desired = lower_pod.lower_pod(upper, OPTIONS)
        changes = update.pod_patch(lower, desired, upper, OPTIONS)
        refused = violations(desired, OPTIONS.policy.of("shop"))
        return changes, left_as_changed(lower["metadata"], desired["metadata"]), {one.rule for one in refused}
    except Exception as error:  # noqa: BLE001 - malformed pods
        return type(error)


def _likeness(lower: Any, upper: Any) -> bytes | None:
    try:
        return update.likeness(lower, upper, OPTIONS)
    except Exception:  # noqa: BLE001 - malformed pods
        return None


def test_a_pod_with_a_difference_that_would_be_patched_is_not_like_others():
    lower, upper = _pair()
    known, expected = _likeness(lower, upper), _result(lower, upper)
    assert known is not None
    checked = [(one, upper) for one in _variants(lower)] + [(lower, one) for one in _variants(upper)]
    alike = [pair for pair in checked if _likeness(*pair) == known]
    assert [pair for pair in alike if _result(*pair) != expected] == []
    assert len(alike) > 20, "the comparison must not be empty"
    assert len(checked) > len(alike) + 50


def test_replicas_of_one_workload_are_alike():
    lower, upper = _pair()
    text = json.dumps([lower, upper])
    for ours, others in (
        (upper["metadata"]["uid"], "99999999-2222-3333-4444-555555555555"),
        ('"name": "web-0"', '"name": "web-1"'),
        ("/web-0/", "/web-1/"),
        ("kube-api-access-x", "kube-api-access-y"),
        ("10.0.0.1", "10.0.0.2"),
        ("node-1", "node-2"),
        ("lower-1", "lower-2"),
    ):
        text = text.replace(ours, others)
    replica = json.loads(text)
    refers_to_itself = "metadata.uid" in text
    assert (_likeness(*replica) == _likeness(lower, upper)) is not refers_to_itself
    for pod in (lower, upper, *replica):
        for container in pod["spec"]["containers"]:
            container.pop("env", None)
    assert _likeness(*replica) == _likeness(lower, upper) is not None


def _plan(lower: Any, upper: Any, known: update.KnownPairs | None) -> Any:
    """Return the changes and refusals of a pair; the type of the error if a pod is malformed."""
    try:
        made = update.plan(
            from_dict(upper), from_dict(lower), OPTIONS, OPTIONS.policy.of("shop"), known=known
        )
    except Exception as error:  # noqa: BLE001 - malformed pods
        return type(error)
    return made.changes, made.refused


def test_a_pod_is_compared_unless_an_equal_pod_needed_no_change(monkeypatch: pytest.MonkeyPatch):
    """Every single difference leads to the same plan as without known pairs."""
    lower, upper = _pair()
    known = update.KnownPairs()
    assert _plan(lower, upper, known) == (update.PodChanges(), [])
    lowers, uppers = _variants(lower), _variants(upper)
    for below, above in [(variant, upper) for variant in lowers] + [(lower, variant) for variant in uppers]:
        changed = _plan(below, above, None)
        # An error is possible only for a pod without a field that API servers always send.
        assert isinstance(changed, type) or _plan(below, above, known) == changed
    monkeypatch.delattr(update, "lower_pod")
    assert _plan(lower, upper, known) == (update.PodChanges(), [])
    assert _plan(lower, upper, None) is NameError


def test_known_pairs_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(update, "_MOST_KNOWN", 2)
    known = update.KnownPairs()
    for number in range(5):
        known.add((bytes([number]), True))
    assert [number for number in range(5) if (bytes([number]), True) in known] == [4]

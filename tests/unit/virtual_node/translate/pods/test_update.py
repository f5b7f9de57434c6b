"""Patches of a lower pod for changes of its upper pod."""

from __future__ import annotations

from tests.unit.virtual_node.translate.pods.pods import OPTIONS, upper_pod
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


def test_pod_level_resources_are_resized_in_place():
    """KEP-5419: cpu and memory of the pod itself, like those of containers."""
    lower = lower_pod.lower_pod(upper_pod(resources={"limits": {"cpu": "1", "memory": "1Gi"}}), OPTIONS)
    after = upper_pod(resources={"limits": {"cpu": "2", "memory": "1Gi"}})
    desired = lower_pod.lower_pod(after, OPTIONS)
    changes = update.pod_patch(lower, desired, after, OPTIONS)
    assert changes.resize == {"spec": {"resources": {"limits": {"cpu": "2"}}}}
    assert not update.is_already_requested(lower, desired)

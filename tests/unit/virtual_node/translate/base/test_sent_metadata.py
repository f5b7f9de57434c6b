"""Which labels and annotations are sent: the record distinguishes what we sent from what the lower cluster changed."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from clusterset.model import names
from clusterset.model.policy.config import AnnotationRules, Policy
from clusterset.model.policy.copied_keys import TOPOLOGY, is_upper_only
from clusterset.model.policy.rules import PolicySet
from tests.unit.virtual_node.translate.pods.pods import OPTIONS, upper_pod
from virtual_node.translate.base.metadata import left_as_changed
from virtual_node.translate.base.view import View
from virtual_node.translate.kinds import CONFIG_MAPS
from virtual_node.translate.pods import lower_pod, update

KEY = "example.com/state"
ABSENT = None


class PodOfBoth:
    """An upper pod and its lower pod, as a virtual node writes it."""

    def __init__(self, field: str, value: str | None) -> None:
        self.field = field
        self.upper = upper_pod()
        self._set(self.upper, value)
        self.lower = copy.deepcopy(lower_pod.lower_pod(self.upper, OPTIONS))

    def _set(self, pod: dict[str, Any], value: str | None) -> None:
        values = dict(pod["metadata"].get(self.field) or {})
        values.pop(KEY, None)
        pod["metadata"][self.field] = values if value is None else {**values, KEY: value}

    def above(self, value: str | None) -> None:
        """Change the value in the upper cluster, and update the lower pod."""
        self._set(self.upper, value)
        self.update()

    def below(self, value: str | None) -> None:
        """Change the value in the lower cluster, and update the lower pod."""
        self._set(self.lower, value)
        self.update()

    def update(self) -> dict[str, Any]:
        """Apply the patch of a reconcile, twice; return the first."""
        first: dict[str, Any] = {}
        for number in range(2):
            desired = lower_pod.lower_pod(self.upper, OPTIONS)
            patch = update.pod_patch(self.lower, desired, self.upper, OPTIONS).metadata_and_spec or {}
            assert not number or not patch, "a second reconcile sends nothing"
            for field, change in patch.get("metadata", {}).items():
                values = {**self.lower["metadata"][field], **change}
                self.lower["metadata"][field] = {
                    key: value for key, value in values.items() if value is not None
                }
            first = first or patch
        return first

    @property
    def value(self) -> str | None:
        """The value in the lower cluster."""
        found: str | None = self.lower["metadata"][self.field].get(KEY)
        return found


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize(
    ("first", "steps", "last"),
    [
        ("sent", [("below", "lower")], "lower"),
        ("sent", [("below", "lower"), ("above", "sent")], "lower"),
        ("sent", [("below", "lower"), ("above", "changed")], "changed"),
        ("sent", [("below", "lower"), ("above", "changed"), ("below", "lower")], "lower"),
        ("sent", [("below", ABSENT)], ABSENT),
        ("sent", [("below", ABSENT), ("above", "changed")], "changed"),
        ("sent", [("above", ABSENT)], ABSENT),
        ("sent", [("below", "lower"), ("above", ABSENT)], "lower"),
        ("sent", [("below", "lower"), ("above", ABSENT), ("above", "again")], "lower"),
        ("sent", [("below", "new"), ("above", "new"), ("above", "newer")], "newer"),
        (ABSENT, [("above", "added")], "added"),
        (ABSENT, [("below", "lower"), ("above", "added")], "lower"),
        (ABSENT, [("below", "lower"), ("above", "added"), ("above", "changed")], "lower"),
        (ABSENT, [("below", "lower"), ("above", "added"), ("above", ABSENT)], "lower"),
        (ABSENT, [("below", "lower"), ("above", "added"), ("below", ABSENT)], "added"),
    ],
)
def test_the_last_change_of_what_we_sent_wins_and_other_keys_are_left(field, first, steps, last):
    pod = PodOfBoth(field, first)
    for where, value in steps:
        getattr(pod, where)(value)
    assert pod.value == last


def test_admission_that_changes_a_value_in_our_request_is_not_overwritten():
    pod = PodOfBoth("annotations", "sent")
    pod._set(pod.lower, "admission")
    pod.upper["metadata"]["labels"] = {"unrelated": "change"}
    assert pod.update()["metadata"]["labels"] == {"unrelated": "change", "app": None}
    assert pod.value == "admission"
    desired = lower_pod.lower_pod(pod.upper, OPTIONS)
    left = left_as_changed(pod.lower["metadata"], desired["metadata"])
    assert left == [f"metadata.annotations[{KEY}]"]


@pytest.mark.parametrize(
    "key", [names.LABEL_UPPER_UID, names.LABEL_UPPER_CLUSTER, names.LABEL_NODE, names.LABEL_VIRTUAL_POD]
)
@pytest.mark.parametrize("value", [None, "forged"])
def test_our_labels_are_always_restored(key, value):
    pod = PodOfBoth("labels", "sent")
    wanted = pod.lower["metadata"]["labels"][key]
    pod.lower["metadata"]["labels"] |= {key: value}
    if value is None:
        del pod.lower["metadata"]["labels"][key]
    assert pod.update()["metadata"] == {"labels": {key: wanted}}


@pytest.mark.parametrize("record", ["{", "[]", '{"labels":[[]],"annotations":{"a":{}}}', '{"labels":7}'])
def test_a_forged_record_is_written_again(record):
    pod = PodOfBoth("labels", "sent")
    expected = pod.lower["metadata"]["annotations"][names.ANNOTATION_APPLIED]
    pod.lower["metadata"]["annotations"][names.ANNOTATION_APPLIED] = record
    pod.update()
    assert json.loads(pod.lower["metadata"]["annotations"][names.ANNOTATION_APPLIED]) == json.loads(expected)


class TestRecordOfAnEarlierRelease:
    """It has keys without digests."""

    def pod(self, value: str, *more: str) -> PodOfBoth:
        pod = PodOfBoth("annotations", value)
        note = json.loads(pod.lower["metadata"]["annotations"][names.ANNOTATION_APPLIED])
        old = {**note, "labels": sorted(note["labels"]), "annotations": sorted([*note["annotations"], *more])}
        pod.lower["metadata"]["annotations"][names.ANNOTATION_APPLIED] = json.dumps(old)
        return pod

    def test_it_stays_until_something_changes(self):
        """An upgrade does not patch every lower pod."""
        assert self.pod("sent").update() == {}

    def test_a_different_value_is_sent_once(self):
        """The upper value may have changed while no process ran."""
        pod = self.pod("sent")
        pod._set(pod.lower, "lower")
        pod.update()
        assert pod.value == "sent"
        pod.below("lower")
        assert pod.value == "lower"

    def test_state_of_the_upper_cluster_that_was_sent_stays(self):
        """A pod of before the upgrade keeps the zone that its files show."""
        state = "cni.projectcalico.org/podIP"
        pod = self.pod("sent", state)
        for one in (pod.upper, pod.lower):
            one["metadata"]["annotations"][state] = "10.16.0.5"
        pod.update()
        assert pod.lower["metadata"]["annotations"][state] == "10.16.0.5"
        assert (
            state
            not in json.loads(pod.lower["metadata"]["annotations"][names.ANNOTATION_APPLIED])["annotations"]
        )


def test_copies_follow_the_same_rule():
    """For example an annotation of a load balancer's controller on a Service."""
    view = View(cluster_id="u", nodes=("vn",))
    above: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "c",
            "namespace": "shop",
            "uid": "1",
            "annotations": {KEY: "sent", "other": "a"},
        },
    }
    current = CONFIG_MAPS.copy("shop/c", above, {}, view)
    current["metadata"]["annotations"] |= {KEY: "lower", "added": "lower"}
    assert CONFIG_MAPS.patch(current, CONFIG_MAPS.copy("shop/c", above, {}, view), above) is None
    above["metadata"]["annotations"]["other"] = "b"
    patch = CONFIG_MAPS.patch(current, CONFIG_MAPS.copy("shop/c", above, {}, view), above)
    assert patch is not None
    assert patch["metadata"]["annotations"].keys() == {"other", names.ANNOTATION_APPLIED}
    current["metadata"]["labels"][names.LABEL_UPPER_UID] = "forged"
    patch = CONFIG_MAPS.patch(current, CONFIG_MAPS.copy("shop/c", above, {}, view), above)
    assert patch is not None
    assert patch["metadata"]["labels"] == {names.LABEL_UPPER_UID: "1"}


@pytest.mark.parametrize(
    ("key", "stays"),
    [
        ("cni.projectcalico.org/podIP", True),
        ("cni.projectcalico.org/podIPs", True),
        ("cni.projectcalico.org/containerID", True),
        ("cni.projectcalico.org/ipAddrs", False),  # a request of the user
        ("ovn.kubernetes.io/allocated", True),
        ("ovn.kubernetes.io/ip_address", True),
        ("net1.default.ovn.kubernetes.io/mac_address", True),
        ("k8s.ovn.org/pod-networks", True),
        ("security.openshift.io/validated-scc-subject-type", True),
        ("autopilot.gke.io/resource-adjustment", True),
        ("external-dns.kubernetes.io/internal-hostname", True),
        ("external-dns.alpha.kubernetes.io/target", True),
        ("dns.alpha.kubernetes.io/internal", True),
        ("consul.hashicorp.com/connect-inject", False),  # changes how the pod runs
        ("k8s.v1.cni.cncf.io/network-status", True),
        ("k8s.v1.cni.cncf.io/networks", False),
        ("kubernetes.io/config.source", True),
        ("kubernetes.io/config.mirror", False),
        ("sidecar.istio.io/status", False),  # without it, the lower cluster would inject a second proxy
        (names.ANNOTATION_LAST_APPLIED, True),
    ],
)
def test_state_of_the_upper_cluster_stays_there(key, stays):
    pod = upper_pod()
    pod["metadata"]["annotations"] = {key: "x"}
    assert is_upper_only("annotations", key, AnnotationRules()) is stays
    assert (key not in lower_pod.lower_pod(pod, OPTIONS)["metadata"]["annotations"]) is stays


@pytest.mark.parametrize("key", sorted(TOPOLOGY))
def test_topology_labels_of_a_lower_pod_are_those_of_its_node(key):
    """The API server copies them when the pod is bound; the upper cluster's are those of the virtual node."""
    pod = PodOfBoth("labels", "sent")
    pod.upper["metadata"]["labels"] = {"app": "web", key: "z-virtual"}
    pod.update()
    assert key not in pod.lower["metadata"]["labels"]
    pod.lower["metadata"]["labels"][key] = "z-real"
    assert pod.update() == {}
    assert pod.lower["metadata"]["labels"][key] == "z-real"


def test_settings_add_and_remove_annotations_that_stay():
    rules = AnnotationRules(keep=["ovn.kubernetes.io/ip_address"], leave_out=["example.com/*"])
    assert not is_upper_only("annotations", "ovn.kubernetes.io/ip_address", rules)
    assert is_upper_only("annotations", "ovn.kubernetes.io/allocated", rules)
    assert is_upper_only("annotations", "example.com/state", rules)
    assert PolicySet(Policy(annotations=rules)).of("shop").annotations == rules

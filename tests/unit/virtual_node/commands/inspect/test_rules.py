"""Every finding has a state of the clusters with it, and a similar one without it."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from clusterset.model.overrides import Override, OverrideSet
from controller_runtime.apimachinery.decoding import convert
from tests.unit.virtual_node.commands.healthy_clusters import (
    NOW,
    OWNER,
    Change,
    ago,
    bodies,
    both,
    bound_claim,
    claim,
    copied,
    examined,
    following,
    forget,
    gone,
    healthy,
    inspect,
    leaking,
    lower,
    meta,
    node,
    ready,
    set_up,
    sets,
    upper,
    waiting_for,
    worries,
)
from virtual_node.examine.clusters import CLOCK_SKEW, EXPIRIES, RELEASE, SETTINGS, VERSION, VirtualNode
from virtual_node.examine.codes import Code
from virtual_node.examine.expiry import Expiry
from virtual_node.examine.facts import COMPONENTS, LEASES, WAITING
from virtual_node.examine.snapshot import Snapshot, objects
from virtual_node.translate.base.ownership import ownership_labels, proof_of_mirroring
from virtual_node.translate.pods.lower_pod import lower_pod, overridden

SLICE = {
    "labels": {**ownership_labels(OWNER, "gone"), "endpointslice.kubernetes.io/managed-by": "virtual-node.io"}
}
BINDER = {"labels": {"virtual-node.io/upper-cluster": "me", "virtual-node.io/binder-of": "gone"}}
TOKEN = {"labels": {**ownership_labels(OWNER, "gone"), "virtual-node.io/token-of": "gone"}}
LIVE_TOKEN = {"labels": {**ownership_labels(OWNER, "u-web"), "virtual-node.io/token-of": "u-web"}}
REFUSED = {"type": "virtual-node.io/Admitted", "status": "False", "message": "exceeded quota"}
TRACER, ROOT = (
    {"name": name, "image": "busybox", "securityContext": context}
    for name, context in (
        ("tracer", {"capabilities": {"add": ["SYS_PTRACE"]}}),
        ("root", {"privileged": True}),
    )
)
"""Debug containers of kubectl's profiles ``general`` and ``sysadmin``."""
POD, NODE = "shop/web", "vn"


def native_namespace(adopt: bool | list[str] = False) -> Change:  # noqa: FBT001, FBT002 - the setting, which is both
    """Make the lower namespace of the pods unmanaged."""

    def change(facts: Snapshot) -> None:
        bodies(facts.lowers[0], "Namespace").clear()
        set_up(facts.lowers[0], adopt=adopt)
        mark = proof_of_mirroring("l-web", "u-web")
        bodies(facts.upper, "Pod")[0]["metadata"]["annotations"] = {"virtual-node.io/lower-uid": mark}

    return change


def forged(kind: str) -> Change:
    """Copy our labels to an object in a namespace of a lower user, who has read the uid of an upper pod."""

    def change(facts: Snapshot) -> None:
        labels = ownership_labels(OWNER, "u-web" if kind == "Pod" else "gone")
        metadata = meta("web", "forged", labels=labels) | {"namespace": "lowteam"}
        bodies(facts.lowers[0], kind).insert(
            0, {"kind": kind, "metadata": metadata, "spec": {}, "status": {}}
        )

    return change


def lower_version(version: str) -> Change:
    """Give the lower API server and its nodes another version."""

    def change(facts: Snapshot) -> None:
        facts.lowers[0].put(VERSION, version)
        for one in bodies(facts.lowers[0], "Node"):
            one["status"]["nodeInfo"]["kubeletVersion"] = version

    return change


def test_a_rule_that_fails_for_one_lower_cluster_keeps_the_findings_about_others():
    """Whichever comes first; the history then judges nothing that is missing."""
    for names in (("paris", "rome"), ("rome", "paris")):
        facts = healthy()
        leaking("Pod")(facts)
        bad = copied(facts.lowers[0], "rome")
        bodies(bad, "Pod")[-1]["metadata"]["creationTimestamp"] = "x"
        by_name = {"paris": facts.lowers[0], "rome": bad}
        found = inspect(replace(facts, lowers=[by_name[name] for name in names]))
        assert [one.cluster for one in found if one.check == "leaked"] == ["paris"]
        (failure,) = [one for one in found if one.check == "rule" and one.object == "leaked"]
        assert failure.message.startswith("failed, so its findings about rome are missing: ValueError")


def test_a_malformed_pod_concerns_only_its_cluster_in_rules_about_single_pods():
    """One finding for each rule that it makes fail; the same rule's findings about other clusters stay."""
    facts = healthy()
    sets(upper, "spec", "containers", 0, "image", "web:2")(facts)
    rome = copied(facts.lowers[0], "rome")
    set_up(rome, nodes={"vn-rome": rome[SETTINGS].nodes["vn"]})
    bad = copy.deepcopy(upper(facts))
    bad["metadata"]["uid"] = "u-rome"
    bad["spec"]["nodeName"] = "vn-rome"
    bodies(rome, "Pod")[0]["metadata"]["labels"]["virtual-node.io/upper-uid"] = "u-rome"
    bodies(rome, "Pod")[0]["spec"]["containers"] = [1]
    bodies(facts.upper, "Pod").insert(0, bad)
    found = inspect(replace(facts, lowers=[rome, *facts.lowers]))
    assert [one.cluster for one in found if one.check == "drift"] == ["paris"]
    (failure,) = [one for one in found if one.check == "rule" and one.object == "pod_drift"]
    assert failure.message.startswith("failed, so its findings about rome are missing: TypeError")


def test_namespaces_to_adopt_are_listed_with_the_setting():
    """Ready to paste, with the existing patterns."""
    facts = healthy()
    native_namespace(["team-*"])(facts)
    (found,) = [one for one in inspect(facts) if one.check == "adopt"]
    assert "shop (1)" in found.message
    assert "clusters[].namespaces.adopt of paris to [team-*, shop]" in found.next_step


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (None, []),
        # --- leaked
        (leaking("Pod"), [("error", "leaked", "Pod", "shop/old")]),
        (leaking("Pod", creationTimestamp=ago(minutes=4)), []),
        (leaking("Pod", labels={"virtual-node.io/upper-cluster": "somebody"}), []),
        (leaking("Pod", **BINDER), [("error", "leaked", "Pod", "shop/old")]),
        (leaking("ConfigMap"), [("warning", "leaked", "ConfigMap", "shop/old")]),
        (leaking("Secret"), [("warning", "leaked", "Secret", "shop/old")]),
        (
            both(
                leaking("Secret"),
                lambda facts: bodies(facts.lowers[0], "Pod")[0]["spec"].update(
                    imagePullSecrets=[{"name": "old"}]
                ),
            ),
            [],
        ),
        (leaking("Secret", **TOKEN), [("warning", "leaked", "Secret", "shop/old")]),
        (leaking("Secret", **LIVE_TOKEN), []),
        (leaking("Service"), [("warning", "leaked", "Service", "shop/old")]),
        (leaking("EndpointSlice"), []),
        (leaking("EndpointSlice", **SLICE), [("warning", "leaked", "EndpointSlice", "shop/old")]),
        (leaking("PersistentVolumeClaim"), [("warning", "leaked", "PersistentVolumeClaim", "shop/old")]),
        (both(following("NetworkPolicy"), leaking("NetworkPolicy")), [("warning", "leaked", "NetworkPolicy", "shop/old")]),
        (leaking("ConfigMap", deletionTimestamp=ago(seconds=1)), []),
        (both(leaking("Secret"), lambda facts: forget(facts.upper, "Secret")), []),
        (gone("Namespace"), [("warning", "leaked", "Namespace", "shop")]),
        (both(gone("Namespace"), lambda facts: set_up(facts.lowers[0], removes_namespaces=False)), []),
        (leaking("Pod", labels=ownership_labels(OWNER, "u-web")), [("error", "doubled", "Pod", "shop/old")]),
        # --- adopt
        (native_namespace(), [("warning", "adopt", "Cluster", "paris")]),
        (native_namespace(["team-*"]), [("warning", "adopt", "Cluster", "paris")]),
        (native_namespace(["sh*"]), []),
        (native_namespace(adopt=True), []),
        # --- misplaced
        (forged("Pod"), [("warning", "misplaced", "Cluster", "paris")]),
        (forged("Secret"), [("warning", "misplaced", "Cluster", "paris")]),
        # --- missing
        (lambda facts: bodies(facts.lowers[0], "Pod").clear(), [("error", "missing", "Pod", POD)]),
        (
            both(lambda facts: bodies(facts.lowers[0], "Pod").clear(), sets(upper, "status", {"phase": "Failed"})),
            [],
        ),
        (
            both(
                lambda facts: bodies(facts.lowers[0], "Pod").clear(),
                sets(upper, "status", "conditions", [REFUSED]),
            ),
            [("warning", "pods", "Pod", POD)],
        ),
        (
            both(
                lambda facts: bodies(facts.lowers[0], "Pod").clear(),
                sets(upper, "metadata", "creationTimestamp", ago(minutes=4)),
            ),
            [],
        ),
        (lambda facts: forget(facts.lowers[0], "Pod"), []),
        # --- policy
        (sets(upper, "spec", "hostNetwork", True), [("warning", "policy", "Cluster", "paris")]),
        # --- drift
        (sets(upper, "spec", "containers", 0, "image", "web:2"), [("error", "drift", "Pod", POD)]),
        (sets(upper, "spec", "tolerations", [{"key": "gpu"}]), [("error", "drift", "Pod", POD)]),
        (sets(upper, "spec", "activeDeadlineSeconds", 9), [("error", "drift", "Pod", POD)]),
        (sets(upper, "spec", "ephemeralContainers", [TRACER]), [("error", "drift", "Pod", POD)]),
        (sets(upper, "spec", "ephemeralContainers", [ROOT]), []),
        (sets(upper, "spec", "ephemeralContainers", [ROOT, TRACER]), [("error", "drift", "Pod", POD)]),
        (sets(upper, "metadata", "labels", "app", "shop"), [("warning", "drift", "Pod", POD)]),
        (sets(upper, "metadata", "annotations", {"a": "b"}), [("warning", "drift", "Pod", POD)]),
        (sets(lower, "metadata", "labels", "injected", "by-others"), []),
        (
            sets(upper, "spec", "containers", 0, "resources", {"requests": {"cpu": "2"}}),
            [("error", "drift", "Pod", POD)],
        ),
        (sets(upper, "spec", "resources", {"requests": {"cpu": "2"}}), [("error", "drift", "Pod", POD)]),
        # The same field was requested: admission changed it, or a resize was refused.
        (sets(lower, "spec", "containers", 0, "image", "mirror.local/web:1"), []),
        (
            sets(lower, "spec", "containers", 0, "resources", {"requests": {"cpu": "500m"}}),
            [("warning", "drift", "Pod", POD)],
        ),
        (
            sets(lambda facts: lower(facts, "ConfigMap"), "data", {"a": "2"}),
            [("error", "drift", "ConfigMap", "shop/settings")],
        ),
        (
            sets(lambda facts: upper(facts, "ConfigMap"), "immutable", True),
            [("error", "drift", "ConfigMap", "shop/settings")],
        ),
        (sets(lambda facts: lower(facts, "ConfigMap")["metadata"], "labels", "x", "y"), []),
        # --- status
        (
            sets(upper, "status", "phase", "Pending"),
            [("error", "status", "Pod", POD), ("warning", "pods", "Pod", POD)],
        ),
        (sets(lower, "status", "conditions", [ready("False")]), [("error", "status", "Pod", POD)]),
        (
            sets(lower, "status", "conditions", [{**ready("False"), "lastTransitionTime": ago(minutes=4)}]),
            [],
        ),
        (
            both(
                sets(upper, "status", "conditions", [ready("False")]),
                sets(lambda facts: upper(facts, "Node"), "status", "conditions", [ready("Unknown")]),
            ),
            [("error", "node", "Node", NODE)],
        ),
        # --- skew
        (lambda facts: facts.upper.put(CLOCK_SKEW, -6.0), [("warning", "clock", "Cluster", "upper")]),
        (lambda facts: facts.lowers[0].put(CLOCK_SKEW, 31.0), [("error", "clock", "Cluster", "paris")]),
        (
            both(
                lower_version("v1.30.4+k3s1"),
                sets(lambda facts: upper(facts, "Node"), "status", "nodeInfo", "kubeletVersion", "v1.30.4+k3s1"),
            ),
            [("warning", "version", "Cluster", "paris")],
        ),
        (lower_version("v1.33.0"), [("warning", "version", "Node", NODE)]),
        # --- nodes
        (gone("Node"), [("error", "node", "Node", NODE)]),
        (sets(lambda facts: upper(facts, "Node"), "status", "conditions", []), [("error", "node", "Node", NODE)]),
        (
            sets(lambda facts: upper(facts, "Lease"), "spec", "renewTime", ago(seconds=41)),
            [("error", "node", "Node", NODE)],
        ),
        (gone("Lease"), [("error", "node", "Node", NODE)]),
        (lambda facts: forget(facts.upper, LEASES), []),
        # --- capacity
        (
            both(
                sets(lambda facts: lower(facts, "Node"), "spec", "unschedulable", True),
                sets(lambda facts: upper(facts, "Node"), "status", "allocatable", {"cpu": "4"}),
            ),
            [("warning", "capacity", "Node", "n1"), ("warning", "capacity", "Node", NODE)],
        ),
        (
            sets(lambda facts: upper(facts, "Node"), "status", "allocatable", "cpu", "9"),
            [("warning", "capacity", "Node", NODE)],
        ),
        (waiting_for("2"), []),
        (waiting_for("5"), [("error", "capacity", "Pod", POD)]),
        # --- stuck
        (
            both(*(sets(one, "metadata", "deletionTimestamp", ago(minutes=6)) for one in (upper, lower))),
            [("warning", "stuck", "Pod", POD), ("warning", "stuck", "Pod", POD)],
        ),
        (sets(upper, "metadata", "deletionTimestamp", ago(minutes=4)), []),
        (claim(), [("warning", "stuck", "PersistentVolumeClaim", "shop/data")]),
        (claim(deletionTimestamp=ago(hours=1)), [("error", "stuck", "PersistentVolumeClaim", "shop/data")]),
        (bound_claim, [("warning", "stuck", "PersistentVolumeClaim", "shop/data")]),
        (both(claim(), lambda facts: bodies(facts.upper, "Node").append(node("vn-gone"))), []),
        # --- unread
        (lambda facts: setattr(facts.lowers[0], "error", "refused"), [("error", "unread", "Cluster", "paris")]),
        (lambda facts: facts.upper.unread.update({LEASES: "no"}), [("warning", "unread", "Lease", "*")]),
    ],
)  # fmt: skip
def test_finding(change, expected):
    """A state of the clusters and its finding; two healthy ones have none."""
    assert worries(change) == expected


def test_images_that_lower_admission_rewrites_are_reported_once_per_cluster():
    """The virtual node does not restore them; a registry mirror is no fault."""
    facts = healthy()
    sets(lower, "spec", "containers", 0, "image", "mirror.local/web:1")(facts)
    (told,) = [one for one in inspect(facts) if one.check == "drift"]
    assert (told.severity, told.cluster, told.kind) == ("info", "paris", "Cluster")
    assert "of 1 pod, and" in told.message
    assert POD in told.message


def test_labels_that_the_lower_cluster_changed_are_reported_once_per_cluster():
    """The virtual node leaves them until they change in the upper cluster."""
    facts = healthy()
    body = lower_pod(upper(facts), facts.lowers[0][SETTINGS].nodes["vn"].options)
    below = lower(facts)["metadata"]
    below["annotations"] = body["metadata"]["annotations"]
    below["labels"] = {**body["metadata"]["labels"], "app": "by-others"}
    (told,) = [one for one in inspect(facts) if one.check == "drift"]
    assert (told.severity, told.cluster, told.kind) == ("info", "paris", "Cluster")
    assert f"{POD} metadata.labels[app]" in told.message


@pytest.mark.parametrize("is_applied", [True, False])
def test_a_changed_override_is_no_drift(is_applied):
    """It applies to new pods; a change of the user is drift."""
    facts: Any = healthy()
    configured = {
        "name": "mirror",
        "images": [{"from": "docker.io/", "to": "m.example/"}],
        "patch": {"spec": {"containers": [{"name": "*", "resources": {"requests": {"cpu": "2"}}}]}},
    }
    overrides = OverrideSet([convert(configured, Override)])
    options = replace(facts.lowers[0][SETTINGS].nodes["vn"].options, overrides=overrides)
    if is_applied:
        above, below = upper(facts), lower(facts)
        body = overridden(lower_pod(above, options), above, options)
        below["metadata"]["annotations"] = body["metadata"]["annotations"]
        below["spec"]["containers"] = body["spec"]["containers"]
    else:
        set_up(facts.lowers[0], nodes={"vn": VirtualNode(options=options)})
    assert [one for one in inspect(facts) if one.check == "drift"] == []
    upper(facts)["spec"]["containers"][0]["image"] = "web:2"
    assert [one.severity for one in inspect(facts) if one.check == "drift"] == ["error"]


def test_a_pod_that_is_too_large_does_not_hide_other_findings():
    """The virtual node refuses its update with an event."""
    facts: Any = healthy()
    source = {"fieldRef": {"fieldPath": "metadata.annotations['virtual-node.io/mine']"}}
    env = [{"name": f"V{number}", "valueFrom": source} for number in range(40)]
    large = copy.deepcopy(upper(facts))
    large["metadata"].setdefault("annotations", {})["virtual-node.io/mine"] = "x" * 100_000
    large["spec"]["containers"][0]["env"] = env
    upper(facts)["spec"]["containers"][0]["image"] = "web:2"
    bodies(facts.upper, "Pod").insert(0, large)
    found = inspect(facts)
    assert [one.severity for one in found if one.check == "drift"] == ["error"]


def test_debug_containers_that_the_policy_refuses_are_information_with_the_rule():
    """They stay in the upper pod forever, so they are neither an error nor drift."""
    facts = healthy()
    sets(upper, "spec", "ephemeralContainers", [ROOT])(facts)
    (found,) = [one for one in inspect(facts) if one.check == "policy"]
    assert (found.severity, found.object) == ("info", POD)
    assert found.message.startswith(
        "its policy refuses debug containers: privileged: spec.ephemeralContainers[root].securityContext.privileged is"
    )


@pytest.mark.parametrize(
    ("name", "expected"), [("vn", []), ("vn-old", [("warning", "leaked", "Service", "shop/dns")])]
)
def test_a_service_that_an_old_virtual_node_name_keeps_is_reported(name, expected):
    """A renamed virtual node marks its Services again; the old annotation would keep the Service forever."""
    facts = healthy()
    dns = meta("dns", "u-dns")
    mark = {f"always.virtual-node.io/{name}": "true"}
    bodies(facts.upper, "Service").append({"kind": "Service", "metadata": dns})
    below = meta("dns", "l-dns", labels=ownership_labels(OWNER, "u-dns"), annotations=mark)
    bodies(facts.lowers[0], "Service").append({"kind": "Service", "metadata": below})
    assert worries(facts=facts) == expected


@pytest.mark.parametrize(("whose", "told"), [("u-web", True), ("u-original", False)])
def test_only_a_pods_own_uid_annotation_counts(whose, told):
    """A pod restored from a backup has that of its original."""
    facts = healthy()
    bodies(facts.lowers[0], "Pod").clear()
    sets(upper, "metadata", "annotations", {"virtual-node.io/lower-uid": f"l-web/{whose}"})(facts)
    (finding,) = [one for one in inspect(facts) if one.check == "missing"]
    assert ("existed before" in finding.message) is told


@pytest.mark.parametrize(
    ("left", "life", "renewed", "expected"),
    [
        (timedelta(days=31), timedelta(days=365), False, []),
        (timedelta(days=29), timedelta(days=365), False, ["warning"]),
        (timedelta(days=6), timedelta(days=365), True, ["error"]),
        (timedelta(days=-1), timedelta(days=365), False, ["error"]),
        (timedelta(minutes=30), timedelta(hours=1), True, []),
        (timedelta(minutes=5), timedelta(hours=1), True, ["warning"]),
        (timedelta(minutes=-5), timedelta(hours=1), True, ["error"]),
        (timedelta(minutes=30), timedelta(hours=1), False, ["error"]),
    ],
)
def test_expiry(left, life, renewed, expected):
    """Limits are days, except for short-lived renewed credentials: the last tenth of their life."""
    facts = healthy()
    expiry = Expiry("paris", "Token", "file", ends=NOW + left, starts=NOW + left - life, renewed=renewed)
    facts.lowers[0].put(EXPIRIES, [expiry])
    assert [severity for severity, check, _, _ in worries(facts=facts) if check == "expiry"] == expected


def _released(node: str, component: str = "", of: str = "0.2.0") -> Snapshot:
    """Return a virtual node's release, and that of a component's pod; this command is 0.2.0."""
    facts = healthy()
    facts.upper.put(RELEASE, "0.2.0")
    bodies(facts.upper, "Node")[0]["metadata"]["labels"]["virtual-node.io/version"] = node
    components = [
        {
            "metadata": {
                **meta(name, name),
                "labels": {"app.kubernetes.io/component": name, "app.kubernetes.io/version": release},
            },
            "spec": {},
            "status": {"conditions": [ready()]},
        }
        for name, release in (("virtual-node", of), (component, "0.2.0"))
        if name
    ]
    facts.upper.put(COMPONENTS, components)
    return facts


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (_released("0.2.0", "webhook"), []),
        (_released("0.1.0"), [("warning", "release", "Node", "vn")]),
        (_released(""), [("warning", "release", "Node", "vn")]),
        (_released("0.2.0", "webhook", of="0.1.0"), [("warning", "release", "Namespace", "shop")]),
        (_released("0.2.0", of="0.1.0"), []),
    ],
)
def test_different_releases_are_reported(facts: Snapshot, expected: list[tuple[str, str, str, str]]):
    """Between this command and the virtual nodes, and between components; a rollout in progress must be seen twice."""
    assert worries(facts=facts) == expected
    found = [one for one in examined(facts).findings if one.code is Code.RELEASE_SKEW]
    assert all(one.transient for one in found)


def test_faults_of_the_health_model_are_findings():
    """A replica that crashes, a report on a Lease and a pod without a node, each with its check."""
    facts = _released("0.2.0")
    component = bodies(facts.upper, COMPONENTS)[0]
    component["status"] = {
        "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    }
    report = {"virtual-node.io/faults": json.dumps({"rejected": {"": "unknown field lables"}})}
    upper(facts, "Lease")["metadata"]["annotations"] = report
    waiting = {"metadata": meta("later", "u-later", labels={"virtual-pod": "true"}), "spec": {}, "status": {}}
    facts.upper.put(WAITING, [waiting])
    assert worries(facts=facts) == [
        ("error", "component", "Pod", "shop/virtual-node"),
        ("error", "configuration", "Configuration", "configuration"),
        ("warning", "pods", "Pod", "shop/later"),
    ]


def test_a_lost_cluster_is_a_finding_of_that_cluster():
    """By its virtual node's status, although this machine may reach it."""
    facts = healthy()
    lost = {**ready("False"), "reason": "LowerClusterUnreachable", "message": "no answer"}
    upper(facts, "Node")["metadata"]["labels"]["virtual-node.io/lower-cluster"] = "paris"
    sets(lambda facts: upper(facts, "Node"), "status", "conditions", [lost])(facts)
    assert worries(facts=facts) == [("error", "cluster", "Cluster", "paris")]


def test_pods_that_cannot_be_listed_are_one_finding():
    """Three lists of pods fail for one reason; internal names of kinds are not shown."""
    facts = healthy()
    facts.upper.unread = dict.fromkeys((objects("Pod"), COMPONENTS, WAITING), "pods is forbidden")
    assert worries(facts=facts) == [("warning", "unread", "Pod", "*")]


def test_virtual_nodes_of_other_providers_have_no_release():
    """They cannot be upgraded with this project."""
    facts = _released("0.2.0")
    bodies(facts.upper, "Node").append(node("vk", type="virtual-kubelet"))
    assert [one for one in worries(facts=facts) if one[1] == "release"] == []


def test_running_pods_that_break_the_policy_are_listed_by_rule():
    """An upgrade, or a stricter policy, refuses their successors."""
    facts = healthy()
    sets(upper, "spec", "hostPID", True)(facts)
    sets(upper, "spec", "priorityClassName", "system-node-critical")(facts)
    (found,) = [one for one in inspect(facts) if one.check == "policy"]
    assert found.message.startswith("its policy would refuse running pods (1)")
    assert found.message.endswith("hostNamespaces (shop/web); priorityClasses (shop/web)")
    assert "clusters[].policy of paris" in found.next_step

"""The mapping of upper to lower namespaces, and their unmanaged content."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names, namespace_map
from clusterset.model.namespace_map import NamespaceMap
from clusterset.model.policy.config import MetadataRules, Policy
from clusterset.model.policy.rules import PolicySet
from controller_runtime.objects import from_dict
from virtual_node.translate.objects import namespaces

OURS = {names.LABEL_UPPER_CLUSTER: "c"}
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


def test_same_name_prefix_and_explicit():
    """The explicit entry wins over the prefix."""
    assert NamespaceMap()("shop") == "shop"
    mapping = NamespaceMap("u1-", {"special": "other"})
    assert (mapping("shop"), mapping("special")) == ("u1-shop", "other")


@given(one=NAMES, other=NAMES)
def test_names_are_valid_and_distinct(one, other):
    """A prefix makes no name too long, and no two names equal."""
    mapping = NamespaceMap("a-rather-long-prefix-")
    assert len(mapping(one)) <= 63
    assert (mapping(one) == mapping(other)) == (one == other)


def test_a_name_like_a_shortened_one_is_distinct():
    """A tenant chooses the very name that a long one is cut to: the two have different lower namespaces."""
    mapping = NamespaceMap("up-")
    long = "victim-" + "x" * 56
    shortened = mapping(long)
    assert shortened == f"up-{long}"[:54] + "-" + hashlib.sha256(f"up-{long}".encode()).hexdigest()[:8]
    assert mapping(shortened.removeprefix("up-")) != shortened


def test_an_explicit_entry_takes_the_name_of_an_unmapped_namespace():
    """The mapping knows the upper namespace of each explicit lower one."""
    mapping = NamespaceMap("", {"a": "b", "c": "d", "d": "e"})
    assert [mapping.conflicting_upper(name) for name in ("a", "b", "c", "d", "f")] == ["", "a", "", "", ""]


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [([], True), (["shop"], True), (["sh*"], True), (["Sh*"], False), (["x", "y"], False)],
)
def test_allowed_namespaces(patterns, allowed):
    """Shell patterns; none allows all."""
    assert namespace_map.allowed("shop", patterns) is allowed


ENFORCE, VERSION = "pod-security.kubernetes.io/enforce", "pod-security.kubernetes.io/enforce-version"
WARN = "pod-security.kubernetes.io/warn"


def _upper(**labels: str) -> dict[str, Any]:
    return {"metadata": {"labels": {**labels, "team": "a"}}}


def _made(**labels: str) -> dict[str, Any]:
    """Return a lower namespace as it is created for an upper one with these labels."""
    return namespaces.lower_namespace(_upper(**labels), name="u-shop", upper_name="shop", cluster_id="c")


def _patched(lower: dict[str, Any], patch: dict[str, Any] | None) -> dict[str, Any]:
    """A lower namespace after a merge patch."""
    metadata = dict(lower["metadata"])
    for field, change in ((patch or {}).get("metadata") or {}).items():
        merged = {**metadata[field], **change}
        metadata[field] = {key: value for key, value in merged.items() if value is not None}
    return {**lower, "metadata": metadata}


def _security(lower: dict[str, Any]) -> dict[str, str]:
    return {
        key: value for key, value in lower["metadata"]["labels"].items() if key.startswith("pod-security")
    }


def test_pod_security_labels_are_mirrored():
    """Without them a pod that was admitted in the upper cluster might be refused in the lower one, or the reverse."""
    lower = _made(**{ENFORCE: "baseline"})
    assert lower["metadata"]["labels"] == {ENFORCE: "baseline", names.LABEL_UPPER_CLUSTER: "c"}
    assert lower["metadata"]["annotations"][names.ANNOTATION_UPPER_NAMESPACE] == "shop"
    assert namespaces.namespace_patch(_upper(**{ENFORCE: "baseline"}), lower) is None
    for labels in (
        {ENFORCE: "restricted", VERSION: "v1.30"},
        {ENFORCE: "privileged"},
        {WARN: "baseline"},
        {},
    ):
        lower = _patched(lower, namespaces.namespace_patch(_upper(**labels), lower))
        assert _security(lower) == labels
        assert namespaces.namespace_patch(_upper(**labels), lower) is None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({}, {ENFORCE: "restricted"}),
        ({ENFORCE: "privileged"}, {ENFORCE: "restricted"}),
        ({ENFORCE: "privileged", VERSION: "v1.25"}, {ENFORCE: "restricted", VERSION: "latest"}),
        ({ENFORCE: "baseline"}, {ENFORCE: "baseline", VERSION: "latest"}),
        ({ENFORCE: "privileged"}, {}),
    ],
    ids=["added", "tightened", "tightened with version", "pinned", "removed"],
)
@pytest.mark.parametrize(
    "later", [{}, {ENFORCE: "privileged"}, {ENFORCE: "baseline", VERSION: "v1.25"}, {WARN: "baseline"}]
)
def test_lower_administrators_pod_security_labels_stay(ours, theirs, later):
    """Whatever the upper namespace has later: their mode is neither weakened, nor removed, nor reset."""
    lower = _made(**ours)
    labels = {names.LABEL_UPPER_CLUSTER: "c", **theirs}
    lower = {**lower, "metadata": {**lower["metadata"], "labels": labels}}
    for upper in (_upper(**ours), _upper(**later), _upper()):
        patch = namespaces.namespace_patch(upper, lower)
        lower = _patched(lower, patch)
        security = _security(lower)
        security.pop(WARN, None)
        assert security == theirs


@pytest.mark.parametrize("record", [None, "", "[]", "{}", '{"labels":1}'])
def test_namespace_without_an_annotation_is_followed_but_not_weakened(record):
    """An earlier release made it: labels equal to the upper ones are owned, others are the administrator's."""
    lower = _made(**{ENFORCE: "restricted", WARN: "baseline"})
    if record is None:
        del lower["metadata"]["annotations"][names.ANNOTATION_APPLIED]
    else:
        lower["metadata"]["annotations"][names.ANNOTATION_APPLIED] = record
    for warn in ("baseline", "restricted"):
        upper = _upper(**{ENFORCE: "privileged", WARN: warn})
        lower = _patched(lower, namespaces.namespace_patch(upper, lower))
    assert _security(lower) == {ENFORCE: "restricted", WARN: "restricted"}


@pytest.mark.parametrize("lost", ["labels", "annotations"])
def test_removed_marks_of_a_namespace_are_restored(lost: str):
    """Without its mark it would be the lower administrator's, and stay when the upper namespace is deleted."""
    made = namespaces.lower_namespace(None, name="u-shop", upper_name="shop", cluster_id="c")
    marks = {"upper_name": "shop", "cluster_id": "c"}
    assert namespaces.marks_patch(from_dict(made), **marks) is None
    kept = made["metadata"][lost]
    damaged = {**made, "metadata": {**made["metadata"], lost: {"team": "a"}}}
    patch = namespaces.marks_patch(from_dict(damaged), **marks)
    assert patch is not None
    restored = patch["metadata"][lost]
    assert restored
    assert restored.items() <= kept.items()
    assert names.ANNOTATION_APPLIED not in restored


def _object(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}}


@pytest.mark.parametrize(
    ("group", "resource", "item", "counts"),
    [
        ("", "pods", _object("p"), True),
        ("", "pods", _object("p", labels={names.LABEL_UPPER_CLUSTER: "c"}), False),
        ("", "pods", _object("p", labels={names.LABEL_UPPER_CLUSTER: "another"}), True),
        (
            "",
            "pods",
            _object("p", labels=OURS, annotations={names.ANNOTATION_UPPER_NAMESPACE: "shop"}),
            False,
        ),
        (
            "",
            "pods",
            _object("p", labels=OURS, annotations={names.ANNOTATION_UPPER_NAMESPACE: "market"}),
            True,
        ),
        ("", "configmaps", _object("kube-root-ca.crt"), False),
        ("", "configmaps", _object("openshift-service-ca.crt"), False),
        ("", "configmaps", _object("istio-ca-root-cert", labels={"istio.io/config": "true"}), False),
        ("", "configmaps", _object("istio-ca-crl", labels={"istio.io/config": "true"}), False),
        ("", "configmaps", _object("istio-ca-root-cert"), True),
        ("", "configmaps", _object("mine", labels={"istio.io/config": "true"}), True),
        ("", "configmaps", _object("mine"), True),
        ("", "serviceaccounts", _object("default"), False),
        ("", "serviceaccounts", _object("robot"), True),
        ("", "serviceaccounts", _object("builder"), True),
        (
            "",
            "serviceaccounts",
            _object("builder", annotations={"openshift.io/internal-registry-pull-secret-ref": "x"}),
            False,
        ),
        (
            "",
            "serviceaccounts",
            _object("robot", annotations={"openshift.io/internal-registry-pull-secret-ref": "x"}),
            True,
        ),
        (
            "",
            "secrets",
            _object("a-token-x7k2p", annotations={"kubernetes.io/service-account.name": "a"}),
            False,
        ),
        ("", "secrets", _object("a-token", annotations={"kubernetes.io/service-account.name": "a"}), True),
        (
            "",
            "secrets",
            _object("b-token-x7k2p", annotations={"kubernetes.io/service-account.name": "a"}),
            True,
        ),
        (
            "",
            "secrets",
            _object(
                "a-dockercfg-x7k2p",
                annotations={"openshift.io/internal-registry-auth-token.service-account": "a"},
            ),
            False,
        ),
        ("", "secrets", _object("t"), True),
        ("rbac.authorization.k8s.io", "rolebindings", _object("system:image-pullers"), False),
        ("rbac.authorization.k8s.io", "rolebindings", _object("admins"), True),
        ("", "events", _object("e"), False),
        ("apps", "deployments", _object("d"), True),
        ("discovery.k8s.io", "endpointslices", _object("s", ownerReferences=[{"kind": "Service"}]), False),
        ("discovery.k8s.io", "endpointslices", _object("s"), True),
        ("example.com", "widgets", _object("w"), True),
    ],
)
def test_which_objects_are_unmanaged(group, resource, item, counts):
    """All that neither the virtual node nor the lower cluster's own programs created, of any kind."""
    found = namespaces.others([item], group=group, resource=resource, cluster_id="c", upper_name="shop")
    assert bool(found) is counts


@pytest.mark.parametrize(
    ("pattern", "counts"),
    [
        ("networkpolicies.networking.k8s.io/deny-*", False),
        ("networkpolicies/deny-*", True),
        ("networkpolicies.networking.k8s.io/deny", True),
        ("ingresses.networking.k8s.io/deny-*", True),
    ],
)
def test_generated_objects_are_not_counted(pattern: str, counts: bool):  # noqa: FBT001
    """A policy engine creates the object in every namespace, so it would keep each lower namespace forever."""
    found = namespaces.others(
        [_object("deny-all")],
        group="networking.k8s.io",
        resource="networkpolicies",
        cluster_id="c",
        upper_name="shop",
        generated=["secrets/x", pattern],
    )
    assert bool(found) is counts


def carried(*patterns: str, **metadata: Any) -> namespaces.CarriedLabels:
    """Return the labels to copy with ``namespaces.labels`` and ``policy.metadata``."""
    policy = Policy(metadata=MetadataRules(**metadata)) if metadata else Policy()
    return namespaces.CarriedLabels(patterns, PolicySet(policy))


def space(**labels: str) -> dict[str, Any]:
    """Return an upper namespace with labels; ``_`` stands for a dash."""
    return {
        "metadata": {
            "name": "shop",
            "labels": {key.replace("_", "-"): value for key, value in labels.items()},
        }
    }


LABELS = {
    "team": "x",
    "istio-injection": "enabled",
    "control-plane": "a",
    "kubernetes.io/metadata.name": "shop",
}


@pytest.mark.parametrize(
    ("labels", "keys"),
    [
        (carried(), []),
        (carried("team"), ["team"]),
        (carried("istio-*", "te?m"), ["istio-injection", "team"]),
        (carried("*"), ["istio-injection", "team"]),
        (carried("*", keep=["control-plane"]), ["control-plane", "istio-injection", "team"]),
        (carried("*", leave_out=["istio-*"]), ["team"]),
        (carried("*", keep=["*"]), ["control-plane", "istio-injection", "team"]),
    ],
)
def test_labels_that_patterns_and_the_policy_allow_are_copied(
    labels: namespaces.CarriedLabels, keys: list[str]
):
    """Keys that exempt a namespace from controls need a policy; its own name and our keys are never copied."""
    upper = {"metadata": {"name": "shop", "labels": {**LABELS, names.LABEL_UPPER_CLUSTER: "forged"}}}
    made = namespaces.lower_namespace(
        upper, name="up-shop", upper_name="shop", cluster_id="c", carried=labels
    )
    assert sorted(made["metadata"]["labels"].keys() - OURS) == keys
    assert made["metadata"]["labels"][names.LABEL_UPPER_CLUSTER] == "c"


def test_no_pattern_weakens_pod_security():
    """Its labels follow with or without a pattern, and a label that was changed in the lower cluster stays."""
    upper = {"metadata": {"name": "shop", "labels": {ENFORCE: "privileged"}}}
    labels = carried("*", keep=["*"])
    made = namespaces.lower_namespace(upper, name="shop", upper_name="shop", cluster_id="c", carried=labels)
    made["metadata"]["labels"][ENFORCE] = "restricted"
    patch = namespaces.namespace_patch(upper, made, labels)
    assert ENFORCE not in ((patch or {}).get("metadata") or {}).get("labels", {})


STEPS = [
    # upper labels later, lower labels changed by others, labels of the patch
    ({"team": "y"}, {}, {"team": "y"}),
    ({}, {}, {"team": None}),
    ({"team": "x"}, {}, {}),
    ({"team": "y"}, {"team": "mine"}, {}),
    ({}, {"team": "mine"}, {}),
    ({"team": "x", "team-lead": "z"}, {}, {"team-lead": "z"}),
    ({"team": "x", "team-lead": "z"}, {"team-lead": "mine"}, {}),
    ({"team": "x", "env": "prod"}, {}, {}),
]


@pytest.mark.parametrize(("later", "others", "change"), STEPS)
def test_a_label_follows_until_the_lower_administrator_changes_it(
    later: dict[str, str], others: dict[str, str], change: dict[str, str | None]
):
    """A second patch changes nothing."""
    labels = carried("team*")
    before = space(team="x")
    lower = namespaces.lower_namespace(before, name="shop", upper_name="shop", cluster_id="c", carried=labels)
    lower["metadata"]["labels"] |= others
    upper = {"metadata": {"name": "shop", "labels": later}}
    patch = namespaces.namespace_patch(upper, lower, labels) or {"metadata": {}}
    assert patch["metadata"].get("labels", {}) == change
    for field, values in patch["metadata"].items():
        found = lower["metadata"][field] | values
        lower["metadata"][field] = {key: value for key, value in found.items() if value is not None}
    assert namespaces.namespace_patch(upper, lower, labels) is None


def test_a_process_with_other_patterns_leaves_labels_alone():
    """Two processes of one upper cluster may share a lower namespace."""
    upper = space(team="x")
    lower = namespaces.lower_namespace(
        upper, name="shop", upper_name="shop", cluster_id="c", carried=carried("team")
    )
    assert namespaces.namespace_patch(upper, lower, carried()) is None

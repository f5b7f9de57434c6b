"""Which lower namespace stands for which upper one, and what in it is somebody else's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller_runtime.api import names, namespace_map
from controller_runtime.api.namespace_map import NamespaceMap
from virtual_node.translate import namespaces

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)


def test_same_name_prefix_and_explicit():
    """The explicit entry wins over the prefix."""
    assert NamespaceMap()("shop") == "shop"
    mapping = NamespaceMap("u1-", {"special": "other"})
    assert (mapping("shop"), mapping("special")) == ("u1-shop", "other")


@given(one=NAMES, other=NAMES)
def test_names_stay_valid_and_apart(one, other):
    """A prefix makes no name too long, and no two names one."""
    mapping = NamespaceMap("a-rather-long-prefix-")
    assert len(mapping(one)) <= 63
    assert (mapping(one) == mapping(other)) == (one == other)


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [([], True), (["shop"], True), (["sh*"], True), (["Sh*"], False), (["x", "y"], False)],
)
def test_allowed_namespaces(patterns, allowed):
    """Shell patterns; none means all."""
    assert namespace_map.allowed("shop", patterns) is allowed


def test_pod_security_labels_are_carried_and_follow():
    """Without them a pod that was admitted above might be refused below, or the other way round."""
    key = "pod-security.kubernetes.io/enforce"
    upper: dict[str, Any] = {"metadata": {"labels": {key: "baseline", "team": "a"}}}
    lower = namespaces.lower_namespace(upper, name="u-shop", upper_name="shop", cluster_id="c")
    assert lower["metadata"]["labels"] == {key: "baseline", names.LABEL_UPPER_CLUSTER: "c"}
    assert lower["metadata"]["annotations"] == {names.ANNOTATION_UPPER_NAMESPACE: "shop"}
    assert namespaces.namespace_patch(upper, lower) is None
    assert namespaces.namespace_patch({"metadata": {}}, lower) == {"metadata": {"labels": {key: None}}}


def _object(name: str, **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, **metadata}}


@pytest.mark.parametrize(
    ("group", "resource", "item", "counts"),
    [
        ("", "pods", _object("p"), True),
        ("", "pods", _object("p", labels={names.LABEL_UPPER_CLUSTER: "c"}), False),
        ("", "pods", _object("p", labels={names.LABEL_UPPER_CLUSTER: "another"}), True),
        ("", "configmaps", _object("kube-root-ca.crt"), False),
        ("", "configmaps", _object("mine"), True),
        ("", "serviceaccounts", _object("default"), False),
        ("", "serviceaccounts", _object("robot"), True),
        ("", "events", _object("e"), False),
        ("apps", "deployments", _object("d"), True),
        ("discovery.k8s.io", "endpointslices", _object("s", ownerReferences=[{"kind": "Service"}]), False),
        ("discovery.k8s.io", "endpointslices", _object("s"), True),
        ("example.com", "widgets", _object("w"), True),
    ],
)
def test_what_counts_as_somebody_elses(group, resource, item, counts):
    """Everything that neither we nor Kubernetes itself put there, whatever its kind."""
    found = namespaces.others([item], group=group, resource=resource, cluster_id="c")
    assert bool(found) is counts

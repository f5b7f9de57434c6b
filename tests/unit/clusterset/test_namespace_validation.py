"""Configurations in which two upper namespaces would share a lower one are refused, with the field's name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset import validation
from clusterset.config import Cluster, ClusterSet
from clusterset.model import namespace_map
from clusterset.model.namespace_map import NamespaceConfig, NamespaceMap


def found(*namespaces: dict[str, Any], kubeconfigs: tuple[str, ...] = ("k", "k")) -> list[str]:
    """Return the errors of clusters with these namespace settings."""
    clusters = [
        Cluster(name=f"c{number}", kubeconfig=kubeconfig, namespaces=NamespaceConfig(**settings))
        for number, (settings, kubeconfig) in enumerate(zip(namespaces, kubeconfigs, strict=False))
    ]
    return list(validation.problems(ClusterSet(clusters=clusters)))


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"prefix": "Up-"}, "clusters[0].namespaces.prefix"),
        ({"map": {"a": "B"}}, "clusters[0].namespaces.map.a"),
        ({"map": {"a": "b"}}, "clusters[0].namespaces.map.a"),
        ({"map": {"a": "b"}, "allowed": ["b*"]}, "clusters[0].namespaces.map.a"),
        ({"map": {"a": "t", "b": "t"}, "prefix": "x-"}, "clusters[0].namespaces.map"),
        ({"map": {"a": "x-b"}, "prefix": "x-"}, "clusters[0].namespaces.map.a"),
        ({"map": {"a": "kube-system"}, "prefix": "x-"}, "clusters[0].namespaces.map.a"),
        ({"map": {"a": "kube-anything"}, "prefix": "x-"}, "clusters[0].namespaces.map.a"),
        ({"map": {"a": "default"}, "prefix": "x-"}, "clusters[0].namespaces.map.a"),
        ({"prefix": "kube-"}, "clusters[0].namespaces.prefix"),
        ({"prefix": "kube-tenants-"}, "clusters[0].namespaces.prefix"),
        ({"prefix": "kub"}, "clusters[0].namespaces.prefix"),
        ({"prefix": "d"}, "clusters[0].namespaces.prefix"),
        ({"generated": ["configmaps/a", "*"]}, "clusters[0].namespaces.generated[1]"),
        ({"generated": ["*/a"]}, "clusters[0].namespaces.generated[0]"),
        ({"generated": ["configmaps/"]}, "clusters[0].namespaces.generated[0]"),
    ],
)
def test_colliding_namespaces_are_refused_with_their_field(settings, field):
    """Each of them maps two upper namespaces, or a user and the lower system, to one lower namespace."""
    problems = found(settings)
    assert len(problems) == 1
    assert problems[0].startswith(f"{field}: ")


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"generated": ["configmaps/*-ca", "networkpolicies.networking.k8s.io/deny"]},
        {"prefix": "x-"},
        {"prefix": "default-"},
        {"prefix": "x-", "map": {"a": "b", "shop": "storefront"}},
        {"prefix": "x-", "map": {"a": "x-a"}},
        {"map": {"a": "a", "kube-public": "kube-public"}},
        {"map": {"a": "b", "b": "a"}},
        {"map": {"a": "b"}, "allowed": ["a", "team-*"]},
        {"prefix": "x-", "map": {"a": "x-b"}, "allowed": ["a"]},
    ],
)
def test_unambiguous_namespaces_are_accepted(settings):
    """No two allowed upper namespaces have the same lower one."""
    assert found(settings) == []


@pytest.mark.parametrize(
    ("one", "other", "collide"),
    [
        ({"prefix": "a-"}, {"prefix": "a-b-"}, True),
        ({}, {"prefix": "a-"}, True),
        ({"prefix": "a-"}, {"prefix": "b-"}, False),
        ({"prefix": "a-"}, {"prefix": "a-"}, False),
        ({}, {}, False),
        ({"allowed": ["team-*"]}, {"prefix": "a-"}, False),
        ({"allowed": ["a-*"]}, {"prefix": "a-"}, True),
        ({"prefix": "a-"}, {"prefix": "b-", "map": {"x": "a-y"}}, True),
        ({"prefix": "a-", "map": {"x": "t"}}, {"prefix": "b-", "map": {"y": "t"}}, True),
        ({"prefix": "a-", "map": {"x": "t"}}, {"prefix": "b-", "map": {"x": "t"}}, False),
    ],
)
def test_two_entries_for_one_lower_cluster_must_not_collide(one, other, collide):
    """Known by the same kubeconfig and context; otherwise the owner of the lower namespace decides."""
    for first, second in ((one, other), (other, one)):
        problems = found(first, second)
        assert bool(problems) is collide
        assert all(problem.startswith("clusters[1].namespaces: ") for problem in problems)
    assert found(one, other, kubeconfigs=("k1", "k2")) == []


NAMES = st.from_regex(r"[abx]([-abx]{0,3}[abx])?", fullmatch=True)
SETTINGS = st.fixed_dictionaries(
    {
        "prefix": st.sampled_from(["", "a-", "ab-", "x"]),
        "map": st.dictionaries(NAMES, NAMES, max_size=3),
        "allowed": st.lists(st.sampled_from(["a*", "b", "*", "x-?"]), max_size=2),
    }
)


@given(settings=SETTINGS, names=st.lists(NAMES, min_size=2, unique=True))
def test_no_two_namespaces_collide_under_an_accepted_configuration(settings, names):
    """Each allowed upper namespace has its own lower namespace."""
    if found(settings):
        return
    mapping = NamespaceMap(settings["prefix"], settings["map"])
    coming = [name for name in names if namespace_map.allowed(name, settings["allowed"])]
    assert len({mapping(name) for name in coming}) == len(coming)


@given(one=SETTINGS, other=SETTINGS, first=NAMES, second=NAMES)
def test_no_two_namespaces_collide_under_two_accepted_entries(one, other, first, second):
    """The same for two entries with one lower cluster."""
    if first == second or found(one, other):
        return
    if namespace_map.allowed(first, one["allowed"]) and namespace_map.allowed(second, other["allowed"]):
        assert NamespaceMap(one["prefix"], one["map"])(first) != NamespaceMap(other["prefix"], other["map"])(
            second
        )

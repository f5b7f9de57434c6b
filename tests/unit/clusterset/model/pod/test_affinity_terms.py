"""The affinity terms of lower pods: they select the lower pods of the upper pods that the upper terms select, no others."""

from __future__ import annotations

import string
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clusterset.model import names
from clusterset.model.namespace_map import NamespaceMap
from clusterset.model.pod import affinity_terms
from clusterset.model.pod.affinity_terms import Reach, UpperNamespaces
from clusterset.model.policy.copied_keys import KeyPatterns
from controller_runtime.apimachinery.matching import compile_selector

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
NAME = "kubernetes.io/metadata.name"
CLUSTER = "11111111-2222"
OURS = {"key": names.LABEL_UPPER_CLUSTER, "operator": "In", "values": [CLUSTER]}
WEB = {"matchLabels": {"app": "web"}}
OUR_WEB = {**WEB, "matchExpressions": [OURS]}


def _namespaces(found: Mapping[str, Mapping[str, str]]) -> UpperNamespaces:
    made = UpperNamespaces()
    for name, labels in found.items():
        made.upsert(name, {NAME: name, **labels})
    return made


def _reach(*, prefix: str = "up-", allowed: tuple[str, ...] = ("shop", "team-*", "kube-system")) -> Reach:
    namespaces = _namespaces(
        {
            "shop": {"team": "x"},
            "team-a": {"team": "x"},
            "team-b": {"team": "y"},
            "bank": {"team": "x"},
            "kube-system": {"team": "x"},
        }
    )
    return Reach(namespaces, NamespaceMap(prefix, {"team-b": "mapped"}), allowed, CLUSTER)


def _term(**fields: Any) -> dict[str, Any]:
    return {"topologyKey": names.LABEL_HOSTNAME, "labelSelector": WEB, **fields}


def _spec(kind: str, group: str, *terms: dict[str, Any]) -> dict[str, Any]:
    entries = [term if group == REQUIRED else {"weight": 7, "podAffinityTerm": term} for term in terms]
    return {"affinity": {kind: {group: entries}}}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"namespaces": []}, None),
        ({"namespaces": ["shop"]}, ["up-shop"]),
        ({"namespaces": ["team-b", "shop"]}, ["mapped", "up-shop"]),
        ({"namespaces": ["shop", "tenantb", "bank", "kube-system"]}, ["up-shop"]),
        ({"namespaceSelector": {}}, ["mapped", "up-shop", "up-team-a"]),
        ({"namespaceSelector": {"matchLabels": {NAME: "team-a"}}}, ["up-team-a"]),
        ({"namespaceSelector": {"matchLabels": {"team": "x"}}}, ["up-shop", "up-team-a"]),
        (
            {
                "namespaceSelector": {
                    "matchExpressions": [{"key": "team", "operator": "NotIn", "values": ["x"]}]
                }
            },
            ["mapped"],
        ),
        (
            {"namespaces": ["shop"], "namespaceSelector": {"matchLabels": {"team": "y"}}},
            ["mapped", "up-shop"],
        ),
    ],
)
@pytest.mark.parametrize("kind", ["podAffinity", "podAntiAffinity"])
@pytest.mark.parametrize("group", [REQUIRED, PREFERRED])
def test_terms_name_the_lower_namespaces_of_the_selected_upper_ones(kind, group, fields, expected):
    lower = _reach().lower_affinity(_spec(kind, group, _term(**fields)))
    term = {"topologyKey": names.LABEL_HOSTNAME, "labelSelector": OUR_WEB}
    if expected is not None:
        term["namespaces"] = expected
    elif "namespaces" in fields:
        term["namespaces"] = []
    assert lower == _spec(kind, group, term)["affinity"]


@pytest.mark.parametrize(
    "fields",
    [
        {"namespaces": ["tenantb"]},
        {"namespaces": ["bank", "kube-system"]},
        {"namespaceSelector": {"matchLabels": {"team": "z"}}},
        {"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Near"}]}},
        {"labelSelector": None},
        {"labelSelector": None, "namespaceSelector": {}},
    ],
)
def test_terms_that_select_nothing_go_on_selecting_nothing(fields):
    """They must not fall back to the pod's own namespace; a required affinity without pods keeps the pod pending."""
    term = _term(**fields)
    nothing = {"topologyKey": names.LABEL_HOSTNAME}
    required = _spec("podAffinity", REQUIRED, term)
    assert _reach().lower_affinity(required) == _spec("podAffinity", REQUIRED, nothing)["affinity"]
    for kind, group in (
        ("podAffinity", PREFERRED),
        ("podAntiAffinity", REQUIRED),
        ("podAntiAffinity", PREFERRED),
    ):
        assert _reach().lower_affinity(_spec(kind, group, term)) == {}


def test_terms_over_other_topology_are_dropped():
    zone = _term(topologyKey="topology.kubernetes.io/zone", namespaces=["shop"])
    assert _reach().lower_affinity(_spec("podAffinity", REQUIRED, zone)) == {}
    assert _reach().lower_affinity({}) == _reach().lower_affinity({"affinity": {"podAffinity": None}}) == {}


JOB = "jobset.sigs.k8s.io/job-key"
SELECTS_BY_AN_ABSENT_LABEL = [
    {"labelSelector": {"matchLabels": {"app": "web", JOB: "abc"}}},
    {"labelSelector": {"matchExpressions": [{"key": JOB, "operator": "Exists"}]}},
    {"labelSelector": {**WEB, "matchExpressions": [{"key": JOB, "operator": "NotIn", "values": ["abc"]}]}},
    {"labelSelector": {**WEB, "matchExpressions": [{"key": JOB, "operator": "DoesNotExist"}]}},
    {"labelSelector": WEB, "matchLabelKeys": [JOB]},
    {"labelSelector": WEB, "mismatchLabelKeys": ["app", JOB]},
]


@pytest.mark.parametrize("fields", SELECTS_BY_AN_ABSENT_LABEL)
def test_terms_and_constraints_by_labels_that_stay_in_the_upper_cluster_are_dropped(fields):
    """No lower pod has such a label, so a required affinity, also to the pod itself, would keep the pod pending."""
    reach = Reach(changed=KeyPatterns(("jobset.sigs.k8s.io/*",)))
    term = {"topologyKey": names.LABEL_HOSTNAME, **fields}
    for kind in ("podAffinity", "podAntiAffinity"):
        for group in (REQUIRED, PREFERRED):
            assert reach.lower_affinity(_spec(kind, group, term)) == {}
            kept = reach.lower_affinity(_spec(kind, group, term, _term()))
            assert len(kept[kind][group]) == 1
            assert Reach().lower_affinity(_spec(kind, group, term)) != {}
    constraint = {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", **term}
    other = {**constraint, "labelSelector": WEB, "matchLabelKeys": ["app"], "mismatchLabelKeys": []}
    assert reach.lower_spread({"topologySpreadConstraints": [constraint, other]}) == [other]
    assert Reach().lower_spread({"topologySpreadConstraints": [constraint, other]}) == [constraint, other]


def test_terms_by_labels_of_this_project_are_dropped():
    """Lower pods have only those that the virtual node writes."""
    term = {
        "topologyKey": names.LABEL_HOSTNAME,
        "labelSelector": {"matchLabels": {"virtual-node.io/pod-group": "g"}},
    }
    assert Reach().lower_affinity(_spec("podAffinity", REQUIRED, term)) == {}


def test_terms_without_known_namespaces_are_not_predicted():
    reach = Reach(UpperNamespaces(is_known=lambda: False))
    spec = _spec("podAffinity", REQUIRED, _term(namespaces=["shop"]), _term())
    anyone = {"key": names.LABEL_UPPER_CLUSTER, "operator": "Exists"}
    own = _term(labelSelector={**WEB, "matchExpressions": [anyone]})
    assert reach.lower_affinity(spec) == _spec("podAffinity", REQUIRED, own)["affinity"]


def test_selections_follow_changed_namespaces():
    namespaces = _namespaces({"shop": {"team": "x"}})
    selector = {"matchLabels": {"team": "x"}}
    assert namespaces.selected(selector) == {"shop"}
    namespaces.upsert("lab", {"team": "x"})
    assert namespaces.selected(selector) == {"shop", "lab"}
    namespaces.upsert("shop", {"team": "y"})
    assert namespaces.selected(selector) == {"lab"}
    namespaces.remove("lab")
    assert namespaces.selected(selector) == frozenset()


def _many(count: int) -> Reach:
    return Reach(_namespaces({f"team-{number}": {} for number in range(count)}))


@pytest.mark.parametrize(
    ("namespaces", "terms", "is_refused"),
    [(1000, 1, False), (1001, 1, True), (100, 10, False), (100, 11, True)],
)
def test_product_of_terms_and_namespaces_is_limited(namespaces, terms, is_refused):
    reach, spec = (
        _many(namespaces),
        _spec("podAntiAffinity", REQUIRED, *[_term(namespaceSelector={})] * terms),
    )
    where = f"spec.affinity.podAntiAffinity.{REQUIRED}[{terms - 1}]: "
    assert reach.refusal(spec).startswith(where) is is_refused
    kept = reach.lower_affinity(spec)["podAntiAffinity"][REQUIRED] if namespaces <= 1000 else []
    assert sum(len(term["namespaces"]) for term in kept) <= affinity_terms.MOST_NAMES


def test_requirements_of_different_namespace_selectors_are_limited():
    def selector(number: int) -> dict[str, Any]:
        return {"matchExpressions": [{"key": f"k{number}", "operator": "DoesNotExist"}]}

    reach, most = _many(1), affinity_terms.MOST_REQUIREMENTS
    equal = [_term(namespaceSelector=selector(0))] * (most + 1)
    different = [_term(namespaceSelector=selector(number)) for number in range(most + 1)]
    assert reach.refusal(_spec("podAffinity", PREFERRED, *equal)) == ""
    assert reach.refusal(_spec("podAffinity", PREFERRED, *different[:-1])) == ""
    refusal = reach.refusal(_spec("podAffinity", PREFERRED, *different))
    assert refusal.startswith(f"spec.affinity.podAffinity.{PREFERRED}[{most}]: the namespaceSelectors")


# --- properties -------------------------------------------------------------------------------------

KEYS, VALUES = st.sampled_from("abc"), st.sampled_from("xyz")
LABELS = st.dictionaries(KEYS, VALUES, max_size=3)
SPACES = st.text(string.ascii_lowercase[:3], min_size=1, max_size=2)
REQUIREMENT = st.one_of(
    st.builds(lambda key: {"key": key, "operator": "Exists"}, KEYS),
    st.builds(lambda key: {"key": key, "operator": "DoesNotExist"}, KEYS),
    st.builds(lambda key, values: {"key": key, "operator": "NotIn", "values": values}, KEYS, st.lists(VALUES, min_size=1)),
)  # fmt: skip
SELECTORS = st.fixed_dictionaries(
    {}, optional={"matchLabels": LABELS, "matchExpressions": st.lists(REQUIREMENT, max_size=2)}
)
TERMS = st.fixed_dictionaries(
    {"topologyKey": st.just(names.LABEL_HOSTNAME)},
    optional={
        "labelSelector": SELECTORS,
        "namespaces": st.lists(SPACES, max_size=3),
        "namespaceSelector": SELECTORS,
    },
)


def _selects(
    term: Mapping[str, Any], own: str, namespace: str, space: Mapping[str, str], pod: Mapping[str, str]
) -> bool:
    """Kubernetes' rule, as in the API reference of PodAffinityTerm."""
    spaces, selector = term.get("namespaces") or [], term.get("namespaceSelector")
    if not spaces and selector is None:
        spaces = [own]
    is_there = namespace in spaces or (selector is not None and compile_selector(selector)(space))
    return is_there and term.get("labelSelector") is not None and compile_selector(term["labelSelector"])(pod)


@given(
    term=TERMS,
    kind=st.sampled_from(["podAffinity", "podAntiAffinity"]),
    group=st.sampled_from([REQUIRED, PREFERRED]),
    upper=st.dictionaries(SPACES, LABELS, min_size=1),
    strangers=st.dictionaries(SPACES, LABELS),
    prefix=st.sampled_from(["", "a"]),
    allowed=st.sampled_from([(), ("a*",)]),
    pod=LABELS,
)
def test_lower_term_selects_exactly_the_lower_pods_of_the_selected_upper_pods(
    *, term, kind, group, upper, strangers, prefix, allowed, pod
):
    mapping = NamespaceMap(prefix)
    reach = Reach(_namespaces(upper), mapping, allowed, CLUSTER)
    own = min(upper)
    lower = reach.lower_affinity(_spec(kind, group, term)).get(kind, {}).get(group, [])
    terms = lower if group == REQUIRED else [entry["podAffinityTerm"] for entry in lower]
    assert all("namespaceSelector" not in one for one in terms)

    def is_selected(namespace: str, labels: Mapping[str, str], space: Mapping[str, str]) -> bool:
        return any(_selects(one, mapping(own), namespace, space, labels) for one in terms)

    for name, labels in upper.items():
        if allowed and not name.startswith("a"):
            continue
        selected = _selects(term, own, name, {NAME: name, **labels}, pod)
        ours = {**pod, names.LABEL_UPPER_CLUSTER: CLUSTER}
        assert is_selected(mapping(name), ours, {NAME: mapping(name)}) == selected
    # Pods of others are in namespaces of any name, also in those that an upper namespace would get.
    for name, labels in strangers.items():
        assert not is_selected(name, pod, {NAME: name, **labels})
        assert not is_selected(name, {**pod, names.LABEL_UPPER_CLUSTER: "other"}, {NAME: name, **labels})

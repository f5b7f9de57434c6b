"""The copy of a NetworkPolicy allows what the upper policy allows between pods of the lower cluster, and never more."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from controller_runtime.apimachinery.matching import compile_selector
from tests.unit.virtual_node.translate.copying import parts
from virtual_node.translate.base.view import View
from virtual_node.translate.follow.network_policies import (
    LABEL_NAMESPACE,
    lower_policy,
    namespace_selectors,
    selects_namespaces,
)

OURS = {"virtual-node.io/upper-cluster": "id"}
NAMESPACES = {
    "shop": {"team": "a"}, "bank": {"team": "b"}, "forbidden": {"team": "a"}, "kube-system": {},
}  # fmt: skip
for _name, _labels in NAMESPACES.items():
    _labels[LABEL_NAMESPACE] = _name


def selected_of(namespaces: Any, is_allowed: Any = lambda _name: True) -> Any:
    """Return ``View.selected`` without its limits."""

    def selected(selector: Any) -> list[str]:
        matches = compile_selector(selector)
        return [name for name, labels in namespaces.items() if matches(labels) and is_allowed(name)]

    return selected


VIEW = View(
    cluster_id="id",
    nodes=("vn",),
    changed_labels=("ignored",),
    lower_namespace=lambda name: f"x-{name}",
    is_allowed=lambda name: name not in {"forbidden", "kube-system"},
    labels_of=NAMESPACES.get,
    selected=selected_of(NAMESPACES, lambda name: name not in {"forbidden", "kube-system"}),
    pods=lambda _namespace: (),
)


def _policy(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p", "namespace": "shop"}, "spec": spec}


def _named(*names: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": LABEL_NAMESPACE, "operator": "In", "values": list(names)}]}


APP = {"matchLabels": {"app": "web"}}
APP_OURS = {"matchLabels": {"app": "web", **OURS}}
ANY_OURS = {"matchLabels": OURS}
DNS = {"matchLabels": {"k8s-app": "kube-dns"}}
NOT_WEB = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["web"]}]}
MADE = {"matchLabels": OURS}
DNS_BELOW = {"namespaceSelector": _named("kube-system"), "podSelector": DNS}
BLOCK = {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}
TEAM = {"matchLabels": {"team": "a"}}


@pytest.mark.parametrize(
    ("field", "peers", "below", "note"),
    [
        ("from", [{"podSelector": APP}], [{"podSelector": APP_OURS}], ""),
        ("from", [BLOCK], [BLOCK], ""),
        ("from", [{"namespaceSelector": {}}], [{"namespaceSelector": MADE, "podSelector": ANY_OURS}], ""),
        (
            "from",
            [{"namespaceSelector": TEAM, "podSelector": APP}],
            [{"namespaceSelector": MADE | _named("x-shop"), "podSelector": APP_OURS}],
            "",
        ),
        ("from", [{"namespaceSelector": {"matchLabels": {"team": "c"}}}], None, ""),
        ("from", [{"namespaceSelector": _named("gone")}, BLOCK], [BLOCK], ""),
        (
            "from",
            [{"namespaceSelector": _named("kube-system")}],
            None,
            "ingress[0].from[0]: pods of kube-system do not run",
        ),
        ("to", [{"namespaceSelector": _named("kube-system"), "podSelector": DNS}], [DNS_BELOW], ""),
        (
            "to",
            [{"namespaceSelector": {}, "podSelector": DNS}],
            [
                DNS_BELOW,
                {"namespaceSelector": MADE, "podSelector": {"matchLabels": {"k8s-app": "kube-dns", **OURS}}},
            ],
            "",
        ),
        # These select the DNS pods among others, without which lower pods resolve no names.
        (
            "to",
            [{"namespaceSelector": {}}],
            [DNS_BELOW, {"namespaceSelector": MADE, "podSelector": ANY_OURS}],
            "",
        ),
        (
            "to",
            [{"namespaceSelector": {}, "podSelector": NOT_WEB}],
            [DNS_BELOW, {"namespaceSelector": MADE, "podSelector": {**NOT_WEB, "matchLabels": OURS}}],
            "",
        ),
        (
            "to",
            [{"namespaceSelector": _named("kube-system")}],
            [DNS_BELOW],
            "egress[0].to[0]: pods of kube-system do not run",
        ),
        (
            "to",
            [{"namespaceSelector": {}, "podSelector": APP}],
            [{"namespaceSelector": MADE, "podSelector": APP_OURS}],
            "",
        ),
        ("to", [{"podSelector": {}}], [{"podSelector": ANY_OURS}], ""),
        ("from", [{"podSelector": {"matchLabels": {"ignored": "x"}}}], None, "podSelector uses ignored"),
        ("from", [{"podSelector": {"matchLabels": {"virtual-pod": "true"}}}], None, "uses virtual-pod"),
        ("from", [{"podSelector": {"matchLabels": {"virtual-node.io/node": "x"}}}], None, "other labels"),
        ("from", [{"podSelector": APP, "newField": 1}, BLOCK], [BLOCK], "newField is not known"),
        ("from", [{"namespaceSelector": {"newField": 1}}, BLOCK], [BLOCK], "newField is not known"),
        ("from", [{"ipBlock": {"cidr": "10.0.0.0/8", "newField": 1}}], None, "newField is not known"),
        (
            "from",
            [{"namespaceSelector": {"matchLabels": {f"key-{number}": "x" for number in range(51)}}}],
            None,
            "more than 50 requirements",
        ),
        ("from", [{}], None, "it is empty"),
    ],
)
def test_translates_peers(field, peers, below, note):
    direction = {"from": "ingress", "to": "egress"}[field]
    spec, notes, _ = parts(
        lower_policy(
            _policy(podSelector={}, policyTypes=[direction.title()], **{direction: [{field: peers}]}), VIEW
        )
    )
    assert spec is not None
    assert spec[direction] == ([{field: below}] if below else [])
    assert note in "".join(notes)
    assert bool(note) == bool(notes)


@pytest.mark.parametrize("selector", [{}, TEAM, {"matchLabels": {LABEL_NAMESPACE: "bank"}}])
def test_a_pod_with_our_label_in_a_namespace_that_is_not_ours_is_not_admitted(selector):
    """Also if that namespace has the name that a lower namespace of ours would have."""
    rule = {"from": [{"namespaceSelector": selector}]}
    spec, _, _ = parts(lower_policy(_policy(policyTypes=["Ingress"], ingress=[rule]), VIEW))
    assert spec is not None
    for name in ("x-shop", "x-bank"):
        assert not _allowed([spec], OURS, (name, {LABEL_NAMESPACE: name}, OURS), "x-own")
    assert any(
        _allowed([spec], OURS, (name, {LABEL_NAMESPACE: name, **OURS}, OURS), "x-own")
        for name in ("x-shop", "x-bank")
    )


def test_pods_in_adopted_namespaces_are_admitted():
    """virtual-node does not label such namespaces."""
    view = replace(VIEW, adopt=["x-bank"])
    rule = {"from": [{"namespaceSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]}}]}
    spec, _, _ = parts(lower_policy(_policy(policyTypes=["Ingress"], ingress=[rule]), view))
    assert spec is not None
    selectors = [peer["namespaceSelector"] for peer in spec["ingress"][0]["from"]]
    assert selectors == [MADE | _named("x-shop"), _named("x-bank")]
    everywhere = _policy(policyTypes=["Ingress"], ingress=[{"from": [{"namespaceSelector": {}}]}])
    spec, _, _ = parts(lower_policy(everywhere, view))
    assert spec is not None
    assert spec["ingress"] == [{"from": [{"namespaceSelector": {}, "podSelector": ANY_OURS}]}]


def test_a_widened_selector_has_no_rules():
    """Otherwise pods that the upper policy does not select would get its rules."""
    selector = {"matchLabels": {"app": "web", "ignored": "x"}}
    spec, notes, _ = parts(
        lower_policy(_policy(podSelector=selector, policyTypes=["Ingress"], ingress=[{}]), VIEW)
    )
    assert spec == {
        "podSelector": {"matchLabels": {"app": "web", **OURS}},
        "policyTypes": ["Ingress"],
        "ingress": [],
    }
    assert "podSelector uses ignored" in notes[0]


@pytest.mark.parametrize(
    "rule", [{"new": 1}, {"ports": [{"port": 80, "new": 1}]}, {"from": [BLOCK], "ports": [], "new": []}]
)
def test_unknown_fields_of_a_rule_allow_nothing(rule):
    spec, notes, _ = parts(lower_policy(_policy(policyTypes=["Ingress"], ingress=[rule]), VIEW))
    assert spec is not None
    assert spec["ingress"] == []
    assert "new is not known" in notes[0]


def test_the_size_of_a_copy_is_limited():
    many = {f"n-{number}": {LABEL_NAMESPACE: f"n-{number}", "team": "a"} for number in range(3000)}
    view = View(
        cluster_id="id",
        nodes=("vn",),
        labels_of=many.get,
        selected=selected_of(many),
    )
    rule = {"from": [{"namespaceSelector": TEAM}, BLOCK]}
    spec, notes, _ = parts(lower_policy(_policy(policyTypes=["Ingress"], ingress=[rule]), view))
    assert spec is not None
    assert spec["ingress"] == [{"from": [BLOCK]}]
    assert "more than 2000 namespaces" in notes[0]


def test_selectors_without_a_result_are_left_out():
    """A policy, or the policies of a namespace, have too many; other peers are kept."""
    view = replace(VIEW, selected=lambda selector: None if selector == TEAM else ["bank"])
    rule = {"from": [{"namespaceSelector": TEAM}, {"namespaceSelector": {"matchLabels": {"team": "b"}}}]}
    policy = _policy(policyTypes=["Ingress"], ingress=[rule, {"from": [{"namespaceSelector": TEAM}]}])
    spec, notes, _ = parts(lower_policy(policy, view))
    assert spec is not None
    from_bank = {"namespaceSelector": MADE | _named("x-bank"), "podSelector": ANY_OURS}
    assert spec["ingress"] == [{"from": [from_bank]}]
    assert notes[0].startswith("ingress[0].from[0] is left out: an object can have 20 different")


def test_same_selector_of_many_peers_is_evaluated_once():
    """Also if it matches nothing, or too much."""
    for found in ([], [f"n-{number}" for number in range(4000)]):
        selected = Mock(return_value=found)
        peers = [{"namespaceSelector": TEAM}] * 25_000
        policy = _policy(policyTypes=["Ingress"], ingress=[{"from": peers}])
        lower_policy(policy, replace(VIEW, selected=selected))
        assert selected.call_count == 1


def test_different_namespace_selectors_of_a_policy_are_limited():
    """Equal ones count once, and those that need no comparison do not count."""

    def peer(selector: dict[str, Any]) -> dict[str, Any]:
        return {"namespaceSelector": selector}

    many = [{"matchLabels": {"team": f"t{number}"}} for number in range(30)]
    large = {"matchExpressions": [{"key": "team", "operator": "In", "values": [str(n) for n in range(501)]}]}
    peers = [peer(TEAM)] * 1000 + [peer({}), peer(_named("bank")), BLOCK, peer(large), *map(peer, many)]
    found = namespace_selectors(_policy(ingress=[{"from": peers}], egress=[{"to": [peer(TEAM)]}, {}]))
    assert found == [TEAM, *many[:19]]


def test_selectors_with_many_values_are_left_out():
    """A tenant can write 1.5 MB of them, and they are compared with each namespace."""
    values = [str(number) for number in range(501)]
    selector = {"matchExpressions": [{"key": "team", "operator": "NotIn", "values": values}]}
    policy = _policy(policyTypes=["Ingress"], ingress=[{"from": [{"namespaceSelector": selector}, BLOCK]}])
    spec, notes, _ = parts(lower_policy(policy, VIEW))
    assert spec is not None
    assert spec["ingress"] == [{"from": [BLOCK]}]
    assert notes == ("ingress[0].from[0] is left out: namespaceSelector has more than 500 values",)


def test_policies_without_namespace_selectors_do_not_depend_on_namespaces():
    assert not selects_namespaces(_policy(ingress=[{"from": [{"podSelector": {}}, BLOCK]}, {}]))
    assert selects_namespaces(_policy(egress=[{"to": [{"namespaceSelector": {}}]}]))


# --- no more traffic ---------------------------------------------------------------------------------


def _selector(random: Random, keys: list[str]) -> dict[str, Any]:
    if random.random() < 0.3:
        return {}
    key = random.choice(keys)
    if random.random() < 0.5:
        return {"matchLabels": {key: random.choice("ab")}}
    operator = random.choice(["In", "NotIn", "Exists", "DoesNotExist"])
    values = {"values": [random.choice("ab")]} if operator.endswith("In") else {}
    return {"matchExpressions": [{"key": key, "operator": operator, **values}]}


_KEYS = ["app", "tier", "ignored", "virtual-pod", "virtual-node.io/x"]


def _peer(random: Random) -> dict[str, Any]:
    peer: dict[str, Any] = {}
    if random.random() < 0.6:
        peer["podSelector"] = _selector(random, _KEYS)
    if not peer or random.random() < 0.5:
        peer["namespaceSelector"] = _selector(random, ["team", "stage"])
    return peer


def _policies(random: Random) -> list[dict[str, Any]]:
    return [
        _policy(
            podSelector=_selector(random, _KEYS),
            policyTypes=["Ingress"],
            ingress=[
                {"from": [_peer(random) for _ in range(random.randint(0, 2))]}
                for _ in range(random.randint(0, 2))
            ],
        )
        for _ in range(random.randint(1, 3))
    ]


def _allowed(
    policies: list[dict[str, Any]], to: dict[str, str], source: tuple[str, Any, Any], own: str
) -> bool:
    """Evaluate ingress as a network plugin does; source: namespace, its labels, the pod's labels."""
    namespace, namespace_labels, labels = source
    chosen = [spec for spec in policies if compile_selector(spec["podSelector"])(to)]
    if not chosen:
        return True
    for rule in (rule for spec in chosen for rule in spec["ingress"]):
        if not rule.get("from"):
            return True
        for peer in rule["from"]:
            selector = peer.get("namespaceSelector")
            if not (
                compile_selector(selector)(namespace_labels) if selector is not None else namespace == own
            ):
                continue
            if compile_selector(peer.get("podSelector") or {})(labels):
                return True
    return False


def test_generated_copies_never_allow_more():
    """Ingress between pods of the lower cluster, also from unmanaged pods, which no upper policy admits by label."""
    random = Random(20261123)
    same, more = 0, 0
    for _ in range(1500):
        above = _policies(random)
        copies = [lower_policy(policy, VIEW).spec for policy in above]
        below = [spec for spec in copies if spec is not None]
        to, peer = ({key: random.choice("ab") for key in _KEYS if random.random() < 0.5} for _ in range(2))
        namespace = random.choice(["shop", "bank"])
        lower = [
            {**{key: value for key, value in labels.items() if key in {"app", "tier"}}, "virtual-pod": "true", **OURS}
            for labels in (to, peer)
        ]  # fmt: skip
        wanted = _allowed(
            [policy["spec"] for policy in above], to, (namespace, NAMESPACES[namespace], peer), "shop"
        )
        found = _allowed(
            below,
            lower[0],
            (f"x-{namespace}", {LABEL_NAMESPACE: f"x-{namespace}", **OURS}, lower[1]),
            "x-shop",
        )
        assert wanted or not found, (above, to, peer)
        same += wanted == found
        more += wanted
        stranger = {"app": "a", "tier": "a", "ignored": "a"}
        is_open = any(not rule.get("from") for spec in below for rule in spec["ingress"])
        chosen = any(compile_selector(spec["podSelector"])(lower[0]) for spec in below)
        if chosen and not is_open:
            assert not _allowed(below, lower[0], ("x-shop", {LABEL_NAMESPACE: "x-shop"}, stranger), "x-shop")
    assert same > 1000
    assert more > 300

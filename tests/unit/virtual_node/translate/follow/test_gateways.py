"""The copies of Gateways and HTTPRoutes route no more than the upper objects."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.virtual_node.translate.copying import parts
from tests.unit.virtual_node.translate.follow.test_network_policies import OURS, TEAM, VIEW
from virtual_node.translate.base.view import UntranslatableError
from virtual_node.translate.follow.gateways import (
    ADDRESSES,
    lower_gateway,
    lower_route,
    namespace_selectors,
    selects_namespaces,
)

HERE = replace(
    VIEW,
    has_service=lambda namespace, name: (namespace, name) == ("shop", "web"),
    gateway_classes={"upper": "edge"},
)
WEB = {"name": "web", "port": 80}
AWAY = {"name": "away", "port": 80}
ELSEWHERE = {"name": "web", "namespace": "bank", "port": 80}
PARENT = {"name": "g"}
REWRITE = {"type": "URLRewrite", "urlRewrite": {}}
REDIRECT = {"type": "RequestRedirect", "requestRedirect": {"scheme": "https"}}
CORS = {"type": "CORS", "cors": {"allowOrigins": ["https://example.com"]}}
AUTH = {"type": "ExtensionRef", "extensionRef": {"group": "x", "kind": "Auth", "name": "a"}}
MIRROR = {"type": "RequestMirror", "requestMirror": {"backendRef": ELSEWHERE}}
MATCHES = [{"path": {"value": "/"}}]


def _object(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "r", "namespace": "shop"}, "spec": spec}


def _names(*values: str, **selector: Any) -> dict[str, Any]:
    expression = {"key": "kubernetes.io/metadata.name", "operator": "In", "values": list(values)}
    return {"from": "Selector", "selector": {**selector, "matchExpressions": [expression]}}


@pytest.mark.parametrize(
    ("rule", "below", "note"),
    [
        ({"backendRefs": [WEB], "filters": [REWRITE]}, {"backendRefs": [WEB], "filters": [REWRITE]}, ""),
        ({"backendRefs": [WEB, AWAY]}, {"backendRefs": [WEB]}, "rules[0].backendRefs[1] is left out: Service away"),
        ({"backendRefs": [AWAY], "filters": [REWRITE], "matches": MATCHES}, {"matches": MATCHES}, "Service away"),
        ({"filters": [REDIRECT], "matches": MATCHES}, {"filters": [REDIRECT], "matches": MATCHES}, ""),
        ({"backendRefs": [WEB], "newField": {"name": "x"}, "matches": MATCHES}, {"matches": MATCHES}, "newField is not known"),
        ({"backendRefs": [{**WEB, "newField": 1}]}, {}, "newField is not known"),
        ({"backendRefs": [{**WEB, "namespace": "shop"}]}, {"backendRefs": [WEB]}, ""),
        ({"backendRefs": [WEB, ELSEWHERE]}, {"backendRefs": [WEB]}, "only Services of the namespace"),
        ({"backendRefs": [WEB, {"kind": "Bucket", "name": "b"}]}, {"backendRefs": [WEB]}, "only Services"),
        ({"backendRefs": [WEB], "filters": [CORS]}, {"backendRefs": [WEB], "filters": [CORS]}, ""),
        ({"backendRefs": [WEB], "filters": [AUTH], "matches": MATCHES}, {"matches": MATCHES}, "has no backends"),
        ({"backendRefs": [{**WEB, "filters": [AUTH]}]}, {}, "has no backends"),
        ({"backendRefs": [WEB], "filters": [MIRROR]}, {}, "has no backends"),
    ],
)  # fmt: skip
def test_translates_rules(rule, below, note):
    open_rule = {"backendRefs": [WEB]}
    spec, notes, _ = parts(lower_route(_object(parentRefs=[PARENT], rules=[rule, open_rule]), HERE))
    assert spec is not None
    assert spec["rules"] == [below, open_rule]
    assert note in "".join(notes)
    assert bool(note) == bool(notes)


def test_routes_need_a_service_and_a_parent():
    assert lower_route(_object(parentRefs=[PARENT], rules=[{"backendRefs": [AWAY]}]), HERE).spec is None
    rules = [{"backendRefs": [WEB]}]
    parents = [PARENT, {"name": "h", "namespace": "bank"}, {"name": "f", "namespace": "forbidden"}]
    spec, notes, _ = parts(lower_route(_object(parentRefs=parents, rules=rules, hostnames=["a"]), HERE))
    assert spec == {
        "parentRefs": [{"name": "g", "namespace": "x-shop"}, {"name": "h", "namespace": "x-bank"}],
        "rules": rules,
        "hostnames": ["a"],
    }
    assert "parentRefs[2] is left out" in notes[0]
    with pytest.raises(UntranslatableError, match="parentRefs"):
        lower_route(_object(parentRefs=parents[2:], rules=rules), HERE)
    with pytest.raises(UntranslatableError, match="newField"):
        lower_route(_object(parentRefs=parents, rules=rules, newField=1), HERE)


def test_a_route_that_only_redirects_needs_no_service():
    """The usual route from HTTP to HTTPS. Beside Services without a copy, a redirect does not suffice."""
    redirect = {"filters": [REDIRECT]}
    spec, notes, _ = parts(lower_route(_object(parentRefs=[PARENT], rules=[redirect]), HERE))
    assert spec == {"parentRefs": [{"name": "g", "namespace": "x-shop"}], "rules": [redirect]}
    assert not notes
    for rules in (
        [redirect, {"backendRefs": [AWAY]}],
        [{"filters": [REDIRECT, AUTH]}],
        [{"matches": MATCHES}],
    ):
        assert lower_route(_object(parentRefs=[PARENT], rules=rules), HERE).spec is None


def test_routes_of_adopted_namespaces_are_accepted():
    """virtual-node does not label such namespaces, and one selector cannot require the label of some names only."""
    selector = {"matchExpressions": [{"key": "team", "operator": "Exists"}]}
    listener = {"name": "http", "allowedRoutes": {"namespaces": {"from": "Selector", "selector": selector}}}
    upper = _object(gatewayClassName="upper", listeners=[listener])
    view = replace(HERE, adopt=["x-bank"], selected=lambda _selector: ["bank", "shop"])
    spec, _, _ = parts(lower_gateway(upper, view))
    assert spec is not None
    assert spec["listeners"][0]["allowedRoutes"]["namespaces"] == _names("x-bank", "x-shop")


@pytest.mark.parametrize(
    ("namespaces", "below"),
    [
        ({"from": "Same"}, {"from": "Same"}),
        ({}, {"from": "Same"}),
        ({"from": "All"}, {"from": "Selector", "selector": {"matchLabels": OURS}}),
        ({"from": "Selector", "selector": TEAM}, _names("x-shop", matchLabels=OURS)),
        ({"from": "Selector", "selector": {"matchLabels": {"team": "z"}}}, _names("")),
        ({"from": "None"}, _names("")),
    ],
)
def test_routes_of_others_are_not_accepted(namespaces, below):
    listener = {"name": "http", "port": 80, "allowedRoutes": {"namespaces": namespaces}}
    upper = _object(gatewayClassName="upper", listeners=[listener])
    spec, _, _ = parts(lower_gateway(upper, HERE))
    assert spec == {
        "gatewayClassName": "edge",
        "listeners": [{**listener, "allowedRoutes": {"namespaces": below}}],
    }
    assert selects_namespaces(upper) == ("selector" in namespaces)


def _gateway(*selectors: dict[str, Any]) -> dict[str, Any]:
    listeners = [
        {"name": f"l{n}", "port": 80, "allowedRoutes": {"namespaces": {"from": "Selector", "selector": one}}}
        for n, one in enumerate(selectors)
    ]
    return _object(gatewayClassName="upper", listeners=listeners)


def test_listeners_with_selectors_that_cannot_be_compared_are_left_out():
    """The copy then accepts no more routes than the upper Gateway, also if the copy was made for an earlier one."""
    large = {"matchLabels": {f"k{n}": "v" for n in range(51)}}
    values = {"matchExpressions": [{"key": "a", "operator": "NotIn", "values": [str(n) for n in range(501)]}]}
    view = replace(HERE, selected=lambda one: None if one == {"matchLabels": {"team": "b"}} else ["shop"])
    spec, notes, _ = parts(lower_gateway(_gateway(TEAM, large, values, {"matchLabels": {"team": "b"}}), view))
    assert spec is not None
    assert [one["name"] for one in spec["listeners"]] == ["l0"]
    where = "allowedRoutes.namespaces.selector: the listener is left out"
    assert notes[0].startswith(f"listeners[1].{where}, because the selector has more than 50 requirements")
    assert notes[1].startswith(f"listeners[2].{where}, because the selector has more than 500 values")
    assert notes[2].startswith(f"listeners[3].{where}: an object can have 20 different")


def test_names_of_all_listeners_are_limited():
    """Each has at most 1,000."""
    view = replace(HERE, selected=lambda _one: [f"n-{number}" for number in range(2000)])
    spec, notes, _ = parts(lower_gateway(_gateway(*[TEAM] * 6), view))
    assert spec is not None
    sizes = [
        len(one["allowedRoutes"]["namespaces"]["selector"]["matchExpressions"][0]["values"])
        for one in spec["listeners"]
    ]
    assert sizes == [1000] * 4
    assert "more than 4000 namespaces" in notes[0]


def test_different_selectors_of_a_gateway_are_limited():
    """Equal ones count once."""
    many = [{"matchLabels": {"team": f"t{number}"}} for number in range(30)]
    assert namespace_selectors(_gateway(TEAM, TEAM, *many)) == [TEAM, *many[:19]]
    assert (
        namespace_selectors(
            _object(listeners=[{"name": "a"}, {"allowedRoutes": {"namespaces": {"from": "All"}}}])
        )
        == []
    )


def test_certificates_are_secrets_of_the_namespace():
    def listener(**reference: Any) -> dict[str, Any]:
        return {"name": "tls", "port": 443, "tls": {"certificateRefs": [{"name": "cert", **reference}]}}

    good = [listener(), listener(namespace="shop")]
    bad = [
        listener(namespace="bank"),
        listener(kind="Vault"),
        {"name": "m", "tls": {"frontendValidation": {}}},
        {"name": "n", "newField": {}},
    ]
    spec, notes, secrets = parts(
        lower_gateway(_object(gatewayClassName="c", listeners=[*good, *bad], addresses=[]), HERE)
    )
    assert spec == {"gatewayClassName": "c", "listeners": [listener(), listener()]}
    assert secrets == ("cert",)
    assert len(notes) == 5
    with pytest.raises(UntranslatableError, match="only certificates in Secrets"):
        lower_gateway(_object(gatewayClassName="c", listeners=bad), HERE)


_CHECK = {"validation": {"caCertificateRefs": [{"kind": "ConfigMap", "name": "ca"}]}}


@pytest.mark.parametrize(
    ("tls", "kept"),
    [
        ({"frontend": {"default": _CHECK}}, ["http", "passed-through"]),
        ({"frontend": {"perPort": [{"port": 8443, "tls": _CHECK}]}}, ["http", "https", "passed-through"]),
        (
            {"frontend": {"default": _CHECK, "perPort": [{"port": 8443, "tls": {}}]}},
            ["http", "admin", "passed-through"],
        ),
        ({"frontend": {"newField": {}}}, ["http", "passed-through"]),
        ({"newField": {}}, ["http", "passed-through"]),
        (
            {"backend": {"clientCertificateRef": {"name": "client"}}},
            ["http", "https", "admin", "passed-through"],
        ),
        ({}, ["http", "https", "admin", "passed-through"]),
    ],
)
def test_a_listener_that_checks_clients_is_left_out(tls, kept):
    """Its copy would accept clients without a certificate."""
    listeners = [
        {"name": "http", "port": 80, "protocol": "HTTP"},
        {"name": "https", "port": 443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "cert"}]}},
        {"name": "admin", "port": 8443, "protocol": "HTTPS", "tls": {"certificateRefs": [{"name": "cert"}]}},
        {"name": "passed-through", "port": 9443, "protocol": "TLS", "tls": {"mode": "Passthrough"}},
    ]
    spec, notes, _ = parts(lower_gateway(_object(gatewayClassName="c", listeners=listeners, tls=tls), HERE))
    assert [one["name"] for one in spec["listeners"]] == kept
    assert "tls" not in spec
    assert sum("checks clients" in note for note in notes) == len(listeners) - len(kept)


def test_only_addresses_that_the_upper_api_accepts_are_reported():
    """An entry without a type is an IP address. A lower cluster may have other versions of the API."""
    entries = [
        {"type": "Hostname", "value": "a.example.com"}, {"value": "1.2.3.4"}, {"type": "IPAddress", "value": "1.2.3.4"},
        {"type": "example.com/own", "value": "x"}, {"type": "IPAddress"}, {"value": 5},
    ]  # fmt: skip
    found = ADDRESSES.read({"status": {"addresses": entries}})
    assert found == [
        {"type": "Hostname", "value": "a.example.com"},
        {"type": "IPAddress", "value": "1.2.3.4"},
    ]
    many = [{"type": "Hostname", "value": f"{number}"} for number in range(20)]
    merged = ADDRESSES.merged({"status": {"addresses": found}}, many, [])
    assert merged == [*found, *many[:14]]
    assert ADDRESSES.patch(merged) == {"status": {"addresses": merged}}

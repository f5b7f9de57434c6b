"""The copy of an Ingress, and the addresses that several lower clusters report."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import Any
from unittest.mock import Mock

import pytest

from clusterset.model.policy.config import MetadataRules
from tests.unit.virtual_node.translate.copying import lower_copy
from tests.unit.virtual_node.translate.follow.test_network_policies import VIEW
from virtual_node.translate.base.view import UntranslatableError
from virtual_node.translate.follow.addresses import Recorder
from virtual_node.translate.follow.ingresses import ADDRESSES, lower_ingress

HERE = replace(
    VIEW,
    has_service=lambda namespace, name: (namespace, name) == ("shop", "web"),
    ingress_classes={"nginx": "edge"},
)
RECORDER = Recorder(b"k" * 32, "a", "u")
WEB = {"service": {"name": "web", "port": {"number": 80}}}
AWAY = {"service": {"name": "away", "port": {"number": 80}}}
MISSING = "service-without-copy"
NOWHERE = {"service": {"name": MISSING, "port": {"number": 80}}}
BUCKET = {"resource": {"apiGroup": "k8s.example.com", "kind": "Bucket", "name": "static"}}


def _ingress(annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "i", "namespace": "shop", "uid": "u", "annotations": annotations or {}}
    return {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": metadata, "spec": spec}


def _rule(*backends: Any) -> dict[str, Any]:
    return {
        "host": "a.example.com",
        "http": {"paths": [{"path": "/", "pathType": "Prefix", "backend": one} for one in backends]},
    }


@pytest.mark.parametrize(
    ("spec", "below", "note"),
    [
        (
            {"rules": [_rule(WEB, AWAY)]},
            {"rules": [_rule(WEB, NOWHERE)]},
            "rules[0].http.paths[1] answers with an error: Service away has no copy",
        ),
        (
            {"defaultBackend": AWAY, "rules": [_rule(AWAY), _rule(WEB)]},
            {"rules": [_rule(NOWHERE), _rule(WEB)]},
            "defaultBackend is left out: Service away has no copy",
        ),
        ({"rules": [_rule(AWAY)]}, None, ""),
        ({"defaultBackend": WEB}, {"defaultBackend": WEB}, ""),
        (
            {"ingressClassName": "nginx", "defaultBackend": WEB},
            {"ingressClassName": "edge", "defaultBackend": WEB},
            "",
        ),
        (
            {"ingressClassName": "own", "defaultBackend": WEB},
            {"ingressClassName": "own", "defaultBackend": WEB},
            "",
        ),
        (
            {"defaultBackend": BUCKET, "rules": [_rule(WEB, BUCKET), _rule(BUCKET), {"host": "b"}]},
            {"rules": [_rule(WEB, NOWHERE), _rule(NOWHERE), {"host": "b"}]},
            "defaultBackend is left out: only Services are copied",
        ),
    ],
)
def test_translates_rules_and_classes(spec, below, note):
    found = lower_ingress(_ingress(**spec), HERE)
    assert found.spec == below
    assert note in "".join(found.notes)
    assert bool(note) == bool(found.notes)


def test_no_path_gets_the_answer_of_another_one():
    """Without its path, /admin would be answered by the backend of /."""
    paths = [
        {"path": "/admin", "pathType": "Prefix", "backend": AWAY},
        {"path": "/", "pathType": "Prefix", "backend": WEB},
    ]
    found = lower_ingress(_ingress(rules=[{"host": "a", "http": {"paths": paths}}]), HERE).spec
    assert found is not None
    assert [path["path"] for path in found["rules"][0]["http"]["paths"]] == ["/admin", "/"]
    assert not HERE.has_service("shop", MISSING)


def test_an_ingress_without_services_is_refused():
    with pytest.raises(UntranslatableError, match="only Services"):
        lower_ingress(_ingress(defaultBackend=BUCKET), HERE)


def test_returns_each_secret_once():
    tls = [{"secretName": "a", "hosts": ["x"]}, {"secretName": "a"}, {"hosts": ["y"]}]
    found = lower_ingress(_ingress(tls=tls, defaultBackend=WEB), HERE)
    assert found.secrets == ("a",)
    assert found.spec == {"tls": tls, "defaultBackend": WEB}


def test_the_class_annotation_becomes_the_class_and_issuers_are_left_out():
    given = {
        "kubernetes.io/ingress.class": "nginx",
        "cert-manager.io/issuer": "x",
        "nginx.ingress.kubernetes.io/rewrite-target": "/",
        "virtual-node.io/reported": "forged",
    }
    upper = _ingress(given, defaultBackend=WEB)
    spec = lower_ingress(upper, HERE).spec
    assert spec == {"ingressClassName": "edge", "defaultBackend": WEB}
    copy = lower_copy("Ingress", upper, HERE)
    kept = {key for key in copy["metadata"]["annotations"] if "virtual-node" not in key} - {"global"}
    assert kept == {"nginx.ingress.kubernetes.io/rewrite-target"}
    assert RECORDER.read(copy) == []


_OIDC = "alb.ingress.kubernetes.io/auth-idp-oidc"
_NGINX = "nginx.ingress.kubernetes.io"


@pytest.mark.parametrize(
    ("key", "value", "below", "secret"),
    [
        (f"{_NGINX}/auth-secret", "users", "users", "users"),
        (f"{_NGINX}/auth-secret", "shop/users", "x-shop/users", "users"),
        (f"{_NGINX}/auth-tls-secret", "shop/ca", "x-shop/ca", "ca"),
        (f"{_NGINX}/proxy-ssl-secret", "shop/client", "x-shop/client", "client"),
        ("nginx.org/basic-auth-secret", "users", "users", "users"),
        ("haproxy.org/server-crt", "shop/client", "x-shop/client", "client"),
        ("haproxy-ingress.github.io/auth-secret", "secret://shop/users", "secret://x-shop/users", "users"),
        ("haproxy-ingress.github.io/auth-tls-secret", "secret://ca", "secret://ca", "ca"),
        ("haproxy-ingress.github.io/auth-secret", "file:///etc/users", "file:///etc/users", None),
        (_OIDC, '{"issuer": "x", "secretName": "oidc"}', '{"issuer": "x", "secretName": "oidc"}', "oidc"),
        (_OIDC, '{"secretName": "admin/oidc"}', '{"secretName": "admin/oidc"}', None),
        (_OIDC, '{"secretName": 7}', '{"secretName": 7}', None),
        (_OIDC, '{"SECRETNAME": "oidc"}', '{"SECRETNAME": "oidc"}', "oidc"),
        (_OIDC, "[]", "[]", None),
        (f"{_NGINX}/auth-secret", "not a name", "not a name", None),
        (f"{_NGINX}/auth-url", "https://shop/users", "https://shop/users", None),
    ],
)
def test_secrets_that_annotations_name_are_copied_and_found(key, value, below, secret):
    """Without them, an Ingress controller answers each request with an error."""
    upper = _ingress({key: value}, defaultBackend=WEB, tls=[{"secretName": "cert"}])
    assert lower_ingress(upper, HERE).secrets == (("cert", secret) if secret else ("cert",))
    assert lower_copy("Ingress", upper, HERE)["metadata"]["annotations"][key] == below


@pytest.mark.parametrize(
    "value", ["admin/users", "secret://admin/users", " admin/users", "shop/../admin/users", "x-shop/users"]
)
def test_an_annotation_cannot_name_a_secret_of_another_namespace(value):
    """It would be an unmanaged Secret of the lower cluster, unless an administrator allows the annotation."""
    key = f"{_NGINX}/auth-secret"
    upper = _ingress({key: value}, defaultBackend=WEB)
    with pytest.raises(UntranslatableError, match=r"auth-secret names a Secret of another namespace"):
        lower_ingress(upper, HERE)
    kept = replace(HERE, rules_of=lambda _namespace: MetadataRules(keep=[key]))
    assert lower_ingress(upper, kept).secrets == ()
    assert lower_copy("Ingress", upper, kept)["metadata"]["annotations"][key] == value
    left_out = replace(HERE, rules_of=lambda _namespace: MetadataRules(leave_out=[key]))
    assert lower_ingress(upper, left_out).secrets == ()
    assert key not in lower_copy("Ingress", upper, left_out)["metadata"]["annotations"]


_HEADERS = f"{_NGINX}/auth-proxy-set-headers"


@pytest.mark.parametrize(("value", "below"), [("headers", "headers"), ("shop/headers", "x-shop/headers")])
def test_config_maps_that_annotations_name_are_copied(value, below):
    """The proxy sends their values to a server that the tenant chooses, so they must not be unmanaged ones."""
    upper = _ingress({_HEADERS: value}, defaultBackend=WEB)
    found = lower_ingress(upper, HERE)
    assert (found.secrets, found.config_maps) == ((), ("headers",))
    assert lower_copy("Ingress", upper, HERE)["metadata"]["annotations"][_HEADERS] == below


def _action(**target: str) -> str:
    return json.dumps({"type": "forward", "forwardConfig": {"targetGroups": [target]}})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (_HEADERS, "kube-system/extension-apiserver-authentication"),
        (f"{_NGINX}/custom-headers", "admin/headers"),
        ("k8s.apisix.apache.org/svc-namespace", "admin"),
        ("projectcontour.io/tls-cert-namespace", "admin"),
        ("alb.ingress.kubernetes.io/actions.web", _action(serviceName="away")),
        ("alb.ingress.kubernetes.io/actions.web", _action(SERVICENAME="away")),
        ("alb.ingress.kubernetes.io/actions.web", _action(targetGroupARN="arn:aws:x")),
        ("alb.ingress.kubernetes.io/actions.web", '{"type": "forward", "targetGroupName": "x"}'),
        # A program in Go reads it, and replaces the lone surrogate.
        ("alb.ingress.kubernetes.io/actions.web", '{"targetGroupARN": "arn:aws:x", "type": "\\ud800"}'),
        (_OIDC, '{"secretName": "unmanaged", "issuer": "\\ud800"}'),
        (_OIDC, "{"),
    ],
)
def test_no_annotation_uses_objects_without_a_copy(key, value):
    upper = _ingress({key: value}, defaultBackend=WEB)
    with pytest.raises(UntranslatableError, match=key):
        lower_ingress(upper, HERE)
    left_out = replace(HERE, rules_of=lambda _namespace: MetadataRules(leave_out=[key]))
    assert lower_ingress(upper, left_out).spec == {"defaultBackend": WEB}


@pytest.mark.parametrize(
    ("key", "value", "below"),
    [
        ("k8s.apisix.apache.org/svc-namespace", "shop", "x-shop"),
        ("alb.ingress.kubernetes.io/actions.web", _action(serviceName="web"), _action(serviceName="web")),
        ("alb.ingress.kubernetes.io/actions.r", '{"type": "redirect"}', '{"type": "redirect"}'),
    ],
)
def test_annotations_that_use_only_copies_are_kept(key, value, below):
    upper = _ingress({key: value}, defaultBackend=WEB)
    assert lower_copy("Ingress", upper, HERE)["metadata"]["annotations"][key] == below


@pytest.mark.parametrize(
    "key",
    [
        "haproxy.org/backend-config-snippet",
        "haproxy-ingress.github.io/config-backend",
        "haproxy.org/server-crt",
    ],
)
def test_a_service_cannot_configure_the_proxy_of_an_ingress(key):
    """Ingress controllers of HAProxy read the annotations of an Ingress from its Services, too."""
    view = replace(HERE, service_annotations=lambda _namespace, name: {key: "x"} if name == "web" else {})
    with pytest.raises(UntranslatableError, match=f"Service web has annotations.*{key}"):
        lower_ingress(_ingress(rules=[_rule(WEB)]), view)
    kept = replace(view, rules_of=lambda _namespace: MetadataRules(keep=[key]))
    assert lower_ingress(_ingress(defaultBackend=WEB), kept).spec == {"defaultBackend": WEB}


def test_many_paths_to_a_service_with_many_annotations_take_linear_time():
    annotations = Mock(return_value={})
    view = replace(HERE, service_annotations=annotations)
    lower_ingress(_ingress(rules=[_rule(*[WEB] * 1000)] * 5), view)
    annotations.assert_called_once_with("shop", "web")


def _copy(record: str) -> dict[str, Any]:
    return {"metadata": {"annotations": {"virtual-node.io/reported": record}}}


def _status(entries: Any) -> dict[str, Any]:
    return {"metadata": {}, "status": {"loadBalancer": {"ingress": entries}}}


def test_only_addresses_are_read_from_the_status():
    entries = [
        {"ip": "1.2.3.4", "ports": [{"port": 80}]},
        {"hostname": "h" * 300},
        {"ip": 5},
        {"ip": "1.2.3.4"},
    ]
    assert ADDRESSES.read(_status(entries)) == [{"ip": "1.2.3.4"}]
    assert ADDRESSES.read({"metadata": {}}) == []
    assert (
        len(
            ADDRESSES.read(_status([{"ip": f"10.0.{number // 250}.{number % 250}"} for number in range(999)]))
        )
        == 50
    )


@pytest.mark.parametrize(
    "entry",
    [
        {"ip": "1.2.3.4\n"}, {"ip": "1.2.3.4/8"}, {"ip": "01.2.3.4"}, {"ip": "fe80::1%eth0"}, {"ip": "1.2.3.4\0"},
        {"hostname": "Example.com"}, {"hostname": "-a.example.com"}, {"hostname": "a..b"}, {"hostname": "a b"},
        {"hostname": "a" * 64 + ".com"}, {"hostname": "*.example.com"}, {"hostname": ["a"]}, "1.2.3.4", None, 7,
    ],
)  # fmt: skip
def test_an_entry_that_is_no_address_is_not_reported(entry: Any):
    """The API server would refuse the whole list, or a reader would take it for another address."""
    valid = {"ip": "fd00::1", "hostname": "a1.example.com"}
    assert ADDRESSES.read(_status([entry, valid])) == [valid]


@pytest.mark.parametrize("text", ["", "x", "7", "[1e999]", '[5, "x", null]', "[" * 10_000, "9" * 10_000])
def test_a_malformed_record_is_empty(text):
    assert RECORDER.read(_copy(text)) == []


def test_only_an_unchanged_record_of_the_same_object_and_cluster_is_valid():
    """A user of the lower cluster can write the annotation, and copy it to another object."""
    entries = [{"ip": "1.1.1.1"}]
    record = RECORDER.write(entries)
    assert RECORDER.read(_copy(record)) == entries
    others = (
        replace(RECORDER, key=b"x" * 32),
        replace(RECORDER, cluster="b"),
        replace(RECORDER, uid="u-2"),
    )
    assert [other.read(_copy(record)) for other in others] == [[], [], []]
    forged = [
        record.replace("1.1.1.1", "2.2.2.2"),
        json.dumps(entries),
        json.dumps({"addresses": entries, "hash": ""}),
        json.dumps({"addresses": entries}),
        json.dumps({"addresses": {}, "hash": 5}),
    ]
    assert [RECORDER.read(_copy(text)) for text in forged] == [[]] * len(forged)


def test_clusters_remove_only_what_they_reported():
    """Any order of updates ends with the addresses of others and the current ones of both clusters."""
    random = Random(5)
    for _ in range(200):
        upper: list[dict[str, Any]] = [{"ip": "others", "ports": []}]
        current: dict[str, list[dict[str, str]]] = {"a": [], "b": []}
        earlier: dict[str, list[dict[str, str]]] = {"a": [], "b": []}
        for _ in range(random.randint(1, 12)):
            cluster = random.choice("ab")
            if random.random() < 0.5:
                current[cluster] = [{"ip": f"{cluster}{random.randint(0, 2)}"}]
            recorder = replace(RECORDER, cluster=cluster)
            recorded = recorder.write([*earlier[cluster], *current[cluster]])
            upper = ADDRESSES.merged(_status(upper), current[cluster], earlier[cluster])
            earlier[cluster] = recorder.read(_copy(recorded))
        for cluster in "ab":
            upper = ADDRESSES.merged(_status(upper), current[cluster], earlier[cluster])
        assert upper[0] == {"ip": "others", "ports": []}
        assert sorted(one["ip"] for one in upper[1:]) == sorted(
            one["ip"] for entries in current.values() for one in entries
        )

"""Objects that follow pods: NetworkPolicies, Ingresses, Gateways and HTTPRoutes, with the namespaces that they select."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controller_runtime.apimachinery.matching import compile_selector
from controller_runtime.apimachinery.translation_budget import TranslationBudget
from tests.unit.scaling.measure import Kind, Stage
from tests.unit.virtual_node.translate.copying import BY_NAME
from virtual_node.translate.base.view import Selector, Translation, UntranslatableError, View, selector_code
from virtual_node.translate.follow import gateways, ingresses, network_policies

Sizes = Mapping[str, int]
Translate = Callable[[Mapping[str, Any], View], Translation]


def _object(kind: str, size: Sizes, spec: dict[str, Any], **status: Any) -> dict[str, Any]:
    metadata = {
        "name": "web",
        "namespace": "shop",
        "uid": "o-1",
        "labels": {f"label{number}": "x" for number in range(size["labels"])},
        "annotations": {"large": "x" * size["annotation_bytes"]},
    }
    namespaces = {f"ns{number}": {"team": "a", "id": f"{number}"} for number in range(size["namespaces"])}
    whole = {"apiVersion": "v1", "kind": kind, "metadata": metadata, "spec": spec, "status": status}
    return {"object": whole, "namespaces": namespaces}


def _selector(size: Sizes, number: int) -> dict[str, Any]:
    """Return a selector of all namespaces; each number gives another one, and the first one is large."""
    values = ["a", *(f"v{value}" for value in range(size["values"] if not number else 1))]
    expressions = [{"key": "team", "operator": "In", "values": values}]
    expressions += [
        {"key": f"absent{one}", "operator": "DoesNotExist"}
        for one in range(size["requirements"] if not number else 1)
    ]
    return {"matchExpressions": [*expressions, {"key": f"absent-{number}", "operator": "DoesNotExist"}]}


def _view(source: Mapping[str, Any], selectors: Iterable[Selector]) -> View:
    namespaces: dict[str, dict[str, str]] = source["namespaces"]
    selected = {}
    for selector in selectors:
        matches = compile_selector(selector)
        selected[selector_code(selector)] = [name for name, labels in namespaces.items() if matches(labels)]
    return View(
        cluster_id="upper-1",
        nodes=("vn",),
        changed_labels=("ignored",),
        lower_namespace=lambda name: f"up-{name}",
        is_allowed=lambda _name: True,
        labels_of=namespaces.get,
        selected=lambda selector: selected.get(selector_code(selector)),
        pods=lambda _namespace: (),
        has_service=lambda _namespace, name: name.startswith("s"),
    )


def _stages(
    translate: Translate, selectors: Callable[[Mapping[str, Any]], list[Selector]] = lambda _: []
) -> Any:
    """Return the function ``Kind.stages`` of objects with this translation."""

    def stages(source: Mapping[str, Any]) -> Iterable[Stage]:
        upper = source["object"]

        def copied(_budget: TranslationBudget) -> Any:
            try:
                view = _view(source, selectors(upper))
                made = translate(upper, view)
            except UntranslatableError as error:
                return str(error)
            kind = BY_NAME[upper["kind"]]
            body = kind.copy("shop/web", upper, made.content or {"spec": {}}, view)
            older = {**body, "spec": {}}
            return body, kind.patch(older, body), kind.patch(body, older), made.notes, made.secrets

        return (copied,)

    return stages


_COMMON = {"labels": 30, "annotation_bytes": 1200, "namespaces": 60}


def _policy(size: Sizes) -> dict[str, Any]:
    pods = {"matchLabels": {f"p{number}": "x" for number in range(size["pod_labels"])}}
    named = [f"ns{number}" for number in range(size["names"])]
    by_name = {
        "matchExpressions": [{"key": network_policies.LABEL_NAMESPACE, "operator": "In", "values": named}]
    }
    dns = {"podSelector": {"matchLabels": {"k8s-app": "kube-dns"}}, "namespaceSelector": by_name}
    lost = {"podSelector": {"matchLabels": {"ignored": "x" * size["lost_bytes"]}}}
    first = [
        *(
            {"podSelector": pods, "namespaceSelector": _selector(size, number)}
            for number in range(size["selectors"])
        ),
        *(
            {"podSelector": {}, "namespaceSelector": _selector(size, 0)}
            for _ in range(size["equal_selectors"])
        ),
        *({"namespaceSelector": {}} for _ in range(size["peers"])),
        *[lost] * size["lost_peers"],
        {
            "ipBlock": {
                "cidr": "10.0.0.0/8",
                "except": [f"10.0.{number}.0/24" for number in range(size["excepts"])],
            }
        },
        dns,
    ]
    ports = [{"port": number} for number in range(size["ports"])]
    unknown = {f"unknown{number}": 1 for number in range(size["unknown_fields"])}
    rules = [{"to": first, "ports": ports}, {"to": [{**lost["podSelector"], **unknown}]}]
    rules += [{"to": [{"podSelector": {}}], "ports": [{"port": 1}]} for _ in range(size["rules"])]
    return _object("NetworkPolicy", size, {"podSelector": pods, "policyTypes": ["Egress"], "egress": rules})


_POLICY = {
    **_COMMON,
    "pod_labels": 30,
    "names": 30,
    "selectors": 20,
    "equal_selectors": 20,
    "values": 60,
    "requirements": 10,
    "peers": 30,
    "lost_peers": 30,
    "lost_bytes": 300,
    "excepts": 30,
    "ports": 30,
    "rules": 30,
    "unknown_fields": 30,
}


def _gateway(size: Sizes) -> dict[str, Any]:
    def listener(number: int, routes: dict[str, Any], secrets: int) -> dict[str, Any]:
        certificates = [{"name": f"c{secret}"} for secret in range(secrets)]
        tls = {"certificateRefs": certificates, "options": {f"o{one}": "x" for one in range(size["options"])}}
        return {
            "name": f"l{number}",
            "port": 443,
            "protocol": "HTTPS",
            "allowedRoutes": {"namespaces": routes},
            "tls": tls,
        }

    selecting = {"from": "Selector", "selector": _selector(size, 0)}
    listeners = [listener(0, selecting, size["certificates"])]
    listeners += [listener(number, selecting, 1) for number in range(size["equal_selectors"])]
    listeners += [
        listener(number, {"from": "Selector", "selector": _selector(size, number)}, 1)
        for number in range(size["selectors"])
    ]
    listeners += [{"name": f"n{number}", "unknown": 1} for number in range(size["unknown_listeners"])]
    listeners.append({"name": "n", **{f"unknown{number}": 1 for number in range(size["unknown_fields"])}})
    return _object("Gateway", size, {"gatewayClassName": "c", "listeners": listeners})


_GATEWAY = {
    **_COMMON,
    "certificates": 30,
    "options": 10,
    "equal_selectors": 20,
    "selectors": 20,
    "values": 60,
    "requirements": 10,
    "unknown_listeners": 30,
    "unknown_fields": 30,
}


def _route(size: Sizes) -> dict[str, Any]:
    filters = [{"type": "RequestHeaderModifier"} for _ in range(size["filters"])]
    matches = [{"path": {"value": f"/{number}"}} for number in range(size["matches"])]
    backends = [
        {"name": f"s{number}", "port": 80, "filters": filters if not number else []}
        for number in range(size["backends"])
    ]
    lost = [
        {"name": f"x{number}" + "x" * size["lost_bytes"] if not number else "x"}
        for number in range(size["lost_backends"])
    ]
    rules = [{"matches": matches, "filters": filters, "backendRefs": [*backends, *lost]}]
    rules += [{"backendRefs": [{"name": "s", "port": 80}]} for _ in range(size["rules"])]
    rules.append(
        {**{f"unknown{number}": 1 for number in range(size["unknown_fields"])}, "backendRefs": backends}
    )
    spec = {
        "parentRefs": [{"name": f"g{number}"} for number in range(size["parents"])],
        "hostnames": [f"h{number}" for number in range(size["hostnames"])],
        "rules": rules,
    }
    return _object("HTTPRoute", size, spec)


_ROUTE = {
    **_COMMON,
    "filters": 30,
    "matches": 30,
    "backends": 30,
    "lost_backends": 30,
    "lost_bytes": 300,
    "rules": 30,
    "unknown_fields": 30,
    "parents": 30,
    "hostnames": 30,
}


def _ingress(size: Sizes) -> dict[str, Any]:
    def path(number: int, name: str) -> dict[str, Any]:
        return {"path": f"/{number}", "backend": {"service": {"name": name, "port": {"number": 80}}}}

    paths = [path(number, f"s{number}") for number in range(size["paths"])]
    lost = [
        path(number, "x" * (size["lost_bytes"] if not number else 1)) for number in range(size["lost_paths"])
    ]
    rules = [{"host": "h", "http": {"paths": [*paths, *lost]}}]
    rules += [{"host": f"h{number}", "http": {"paths": [path(0, "s")]}} for number in range(size["rules"])]
    tls: list[dict[str, Any]] = [{"secretName": f"t{number}"} for number in range(size["certificates"])]
    tls.append({"secretName": "t", "hosts": [f"h{number}" for number in range(size["hosts"])]})
    addresses = [{"ip": f"10.0.0.{number % 250}"} for number in range(size["addresses"])]
    return _object(
        "Ingress",
        size,
        {"ingressClassName": "c", "rules": rules, "tls": tls},
        loadBalancer={"ingress": addresses},
    )


_INGRESS = {
    **_COMMON,
    "paths": 30,
    "lost_paths": 30,
    "lost_bytes": 300,
    "rules": 30,
    "certificates": 30,
    "hosts": 30,
    "addresses": 60,
}


def _ingress_stages(source: Mapping[str, Any]) -> Iterable[Stage]:
    """Yield the translation of an Ingress, and the report of the addresses of its copy."""
    yield from _stages(ingresses.lower_ingress)(source)
    whole = source["object"]

    def addresses(_budget: TranslationBudget) -> Any:
        current = ingresses.ADDRESSES.read(whole)
        return ingresses.ADDRESSES.patch(ingresses.ADDRESSES.merged(whole, current, current[:1]))

    yield addresses


FOLLOWED = (
    Kind(
        "NetworkPolicy", _POLICY, _policy,
        _stages(network_policies.lower_policy, network_policies.namespace_selectors),
    ),
    Kind("Gateway", _GATEWAY, _gateway, _stages(gateways.lower_gateway, gateways.namespace_selectors)),
    Kind("HTTPRoute", _ROUTE, _route, _stages(gateways.lower_route)),
    Kind("Ingress", _INGRESS, _ingress, _ingress_stages),
)  # fmt: skip

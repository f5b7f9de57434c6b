"""The lower copies of a Gateway and of an HTTPRoute (Gateway API).

A copy never routes more than the upper object: what cannot be translated is left out, and a rule whose filter is left
out has no backends, so that requests get an error.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from clusterset.model import names
from virtual_node.translate.base.fields import is_address, is_dns_name
from virtual_node.translate.base.view import (
    NOT_NEEDED,
    TOO_MANY_SELECTORS,
    Selector,
    Translation,
    UntranslatableError,
    View,
    compared,
    no_copy,
    of_spec,
    too_large,
)
from virtual_node.translate.follow.addresses import AddressField
from virtual_node.translate.follow.network_policies import lower_namespaces, named

_REDIRECT = "RequestRedirect"
_CORS = "CORS"
"""A filter of Gateway API 1.5, which a lower cluster with an earlier version refuses."""
_FILTERS = {"RequestHeaderModifier", "ResponseHeaderModifier", _REDIRECT, "URLRewrite", _CORS}
_MAX_NAMES = 1_000
"""Maximum number of namespaces of one listener; later ones are left out."""
_MAX_ALL_NAMES = 4_000
"""Maximum number of namespace names in one copy."""
_ADDRESS_TYPES = {"IPAddress": is_address, "Hostname": is_dns_name}
_TLS = {"mode", "certificateRefs", "options"}
_WITHOUT_TLS = {"HTTP", "TCP", "UDP"}
"""Protocols of listeners to which ``spec.tls`` does not apply."""
_LISTENER = {"name", "hostname", "port", "protocol", "tls", "allowedRoutes"}
_RULE = {"name", "matches", "filters", "backendRefs", "timeouts", "retry", "sessionPersistence"}
_BACKEND = {"group", "kind", "namespace", "name", "port", "weight", "filters"}
"""Known fields. A field of a later version could refer to another object."""


def lower_gateway(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of a Gateway, with the Secrets of its certificates.

    Raises:
        UntranslatableError: no listener can be copied.
    """
    spec, namespace = upper["spec"], upper["metadata"]["namespace"]
    notes: list[str] = []
    listeners, secrets = [], []
    names_left, is_final = _MAX_ALL_NAMES, True
    for number, listener in enumerate(spec.get("listeners") or ()):
        if unknown := sorted(listener.keys() - _LISTENER):
            notes.append(f"listeners[{number}] is left out: {', '.join(unknown)} is not known")
            continue
        if _checks_clients(spec.get("tls") or {}, listener):
            notes.append(
                f"listeners[{number}] is left out: tls.frontend, which checks clients, is not copied"
            )
            continue
        tls = listener.get("tls") or {}
        references = tls.get("certificateRefs") or ()
        if tls.keys() - _TLS or not all(_is_local(one, "Secret", namespace) for one in references):
            notes.append(
                f"listeners[{number}] is left out: only certificates in Secrets of the namespace are copied"
            )
            continue
        routes = {**(listener.get("allowedRoutes") or {})}
        if "namespaces" in routes:
            try:
                routes["namespaces"], count = _routes_of(routes["namespaces"], view, names_left)
            except UntranslatableError as error:
                notes.append(f"listeners[{number}].allowedRoutes.namespaces.selector: {error}")
                is_final = False  # other objects may have fewer selectors later
                continue
            names_left -= count
        secrets += [one["name"] for one in references]
        below = {**listener, **({"allowedRoutes": routes} if routes else {})}
        if references:
            below["tls"] = {**tls, "certificateRefs": [_without_namespace(one) for one in references]}
        listeners.append(below)
    if not listeners:
        raise UntranslatableError("; ".join(notes[:5]) or "it has no listener", is_final=is_final)
    name = spec["gatewayClassName"]
    body = {"gatewayClassName": view.gateway_classes.get(name, name), "listeners": listeners}
    if ignored := sorted(spec.keys() - {"gatewayClassName", "listeners"}):
        notes.append(f"{', '.join(ignored)} is left out")
    return of_spec(body, notes, secrets)


def _checks_clients(tls: Mapping[str, Any], listener: Mapping[str, Any]) -> bool:
    """Report whether a Gateway's ``spec.tls`` makes a listener check the certificates of clients, or may do so.

    Its copy would accept all clients.
    """
    is_passed_through = (listener.get("tls") or {}).get("mode") == "Passthrough"
    if listener.get("protocol") in _WITHOUT_TLS or is_passed_through:
        return False
    frontend = tls.get("frontend") or {}
    if tls.keys() - {"backend", "frontend"} or frontend.keys() - {"default", "perPort"}:
        return True  # a field of a later version
    of_ports = {one.get("port"): one.get("tls") for one in frontend.get("perPort") or ()}
    return bool(of_ports.get(listener.get("port"), frontend.get("default")))


def lower_route(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of an HTTPRoute; no spec if none of its Services has a copy in the lower cluster.

    A route without Services, which only redirects requests (from HTTP to HTTPS, for example), has a copy, too.

    Raises:
        UntranslatableError: no parent can be referenced, or a field is unknown.
    """
    spec, namespace = upper.get("spec") or {}, upper["metadata"]["namespace"]
    notes: list[str] = []
    above_rules = spec.get("rules") or ()
    rules = [
        _rule(rule, namespace, f"rules[{number}]", notes, view) for number, rule in enumerate(above_rules)
    ]
    has_services = any(rule.get("backendRefs") for rule in above_rules)
    if not any("backendRefs" in rule or (not has_services and _redirects(rule)) for rule in rules):
        return NOT_NEEDED
    parents = []
    for number, parent in enumerate(spec.get("parentRefs") or ()):
        above = parent.get("namespace") or namespace
        if parent.get("kind", "Gateway") != "Gateway" or not view.is_allowed(above):
            notes.append(
                f"parentRefs[{number}] is left out: only Gateways of allowed namespaces can be referenced"
            )
            continue
        parents.append({**parent, "namespace": view.lower_namespace(above)})
    if not parents:
        raise UntranslatableError("; ".join(notes[:5]) or "it has no parent")
    if unknown := sorted(spec.keys() - {"parentRefs", "hostnames", "rules", "useDefaultGateways"}):
        raise UntranslatableError(f"{', '.join(unknown)} is not known")
    below = {"parentRefs": parents, "rules": rules}
    if hostnames := spec.get("hostnames"):
        below["hostnames"] = hostnames
    return of_spec(below, notes)


def _rule(
    rule: Mapping[str, Any], namespace: str, where: str, notes: list[str], view: View
) -> dict[str, Any]:
    """Return the copy of a rule. If it lost all its backends, it has only its matches, so that requests get an error."""
    backends = rule.get("backendRefs") or ()
    without_backends = _only_matches(rule)
    if unknown := sorted(
        {*rule} - _RULE | {key for backend in backends for key in backend.keys() - _BACKEND}
    ):
        notes.append(f"{where} has no backends: {', '.join(unknown)} is not known")
        return without_backends
    if not _filter_types(rule) <= _FILTERS:
        notes.append(f"{where} has no backends: only filters that refer to no other object are copied")
        return without_backends
    kept = []
    for number, backend in enumerate(backends):
        if not _is_local(backend, "Service", namespace):
            notes.append(
                f"{where}.backendRefs[{number}] is left out: only Services of the namespace are kept as backends"
            )
        elif not view.has_service(namespace, backend["name"]):
            notes.append(f"{where}.backendRefs[{number}] is left out: {no_copy(backend['name'])}")
        else:
            kept.append(_without_namespace(backend))
    if backends and not kept:
        return without_backends
    return {
        **{key: value for key, value in rule.items() if key != "backendRefs"},
        **({"backendRefs": kept} if kept else {}),
    }


def _only_matches(rule: Mapping[str, Any]) -> dict[str, Any]:
    return {"matches": rule["matches"]} if "matches" in rule else {}


def _filter_types(rule: Mapping[str, Any]) -> set[Any]:
    """Return the types of all filters of a rule and of its backends."""
    parts = (rule, *(rule.get("backendRefs") or ()))
    return {one.get("type") for part in parts for one in part.get("filters") or ()}


def route_bodies(_upper: Mapping[str, Any], desired: Mapping[str, Any], _view: View) -> list[dict[str, Any]]:
    """Return the HTTPRoutes to try to create; the second one is for clusters that do not know a filter."""
    rules = list(desired["spec"].get("rules") or ())
    plain = [_only_matches(rule) if _CORS in _filter_types(rule) else rule for rule in rules]
    earlier = [] if plain == rules else [{**desired, "spec": {**desired["spec"], "rules": plain}}]
    return [dict(desired), *earlier]


def route_refusal(message: str) -> str:
    """Return why an API server refused an HTTPRoute, if another one of ``route_bodies`` may be accepted; otherwise empty."""
    return "filter not known" if f'"{_CORS}"' in message or ".cors" in message else ""


def route_event(
    _upper: Mapping[str, Any], _created: Mapping[str, Any], _cause: str, _view: View
) -> tuple[str, str]:
    """Return reason and text of an event about a filter that the lower cluster does not know."""
    text = f"does not know the filter {_CORS} of Gateway API 1.5, so requests to rules with it get an error"
    return "PartlyMirrored", text


def _redirects(rule: Mapping[str, Any]) -> bool:
    """Report whether a rule answers requests with a redirect. The API does not allow backends beside it."""
    return any(one.get("type") == _REDIRECT for one in rule.get("filters") or ())


def _without_namespace(reference: Mapping[str, Any]) -> dict[str, Any]:
    """Return a reference to the copy's own namespace, which may have another name than the upper one."""
    return {key: value for key, value in reference.items() if key != "namespace"}


def _is_local(reference: Mapping[str, Any], kind: str, namespace: str) -> bool:
    return (
        not reference.get("group")
        and reference.get("kind", kind) == kind
        and reference.get("namespace", namespace) == namespace
    )


def _routes_of(namespaces: Mapping[str, Any], view: View, most: int) -> tuple[dict[str, Any], int]:
    """Return ``allowedRoutes.namespaces`` of the copy, and the number of names in it.

    These are the lower namespaces from which routes are accepted.

    Raises:
        UntranslatableError: the selector cannot be compared with the namespaces, or matches more than ``most``.
    """
    found: Collection[str] = ()
    match namespaces.get("from", "Same"):
        case "Same":
            return {"from": "Same"}, 0
        case "All":
            # ``All`` would also accept routes that users create in the lower cluster.
            ours = {"matchLabels": {names.LABEL_UPPER_CLUSTER: view.cluster_id}}
            return {"from": "Selector", "selector": ours}, 0
        case "Selector":
            selector = namespaces.get("selector") or {}
            if why := too_large(selector):
                raise UntranslatableError(f"the listener is left out, because the selector {why}")
            selected = view.selected(selector)
            if selected is None:
                raise UntranslatableError(f"the listener is left out: {TOO_MANY_SELECTORS}")
            found = selected
    if min(len(found), _MAX_NAMES) > most:
        raise UntranslatableError(
            f"the listener is left out, because the Gateway selects more than {_MAX_ALL_NAMES} namespaces. Use from: "
            "All, or divide the Gateway"
        )
    below = sorted({view.lower_namespace(name) for name in found})[:_MAX_NAMES]
    selectors = lower_namespaces(below, view)
    # Several selectors are not possible, and the label would exclude adopted namespaces. The empty name matches no
    # namespace; an empty list would be invalid.
    selector = selectors[0] if len(selectors) == 1 else named(below or [""])
    return {"from": "Selector", "selector": selector}, len(below)


def namespace_selectors(upper: Mapping[str, Any]) -> list[Selector]:
    """Return the selectors of a Gateway that are compared with all namespaces."""
    routes = (
        (listener.get("allowedRoutes") or {}).get("namespaces") or {}
        for listener in (upper.get("spec") or {}).get("listeners") or ()
    )
    return compared(one.get("selector") or {} for one in routes if one.get("from") == "Selector")


def selects_namespaces(upper: Mapping[str, Any]) -> bool:
    """Report whether a Gateway has a namespace selector, so that its copy depends on other namespaces."""
    return any(
        "selector" in ((listener.get("allowedRoutes") or {}).get("namespaces") or {})
        for listener in (upper.get("spec") or {}).get("listeners") or ()
    )


def _address(entry: Mapping[str, Any]) -> dict[str, str]:
    kind = entry.get("type") or "IPAddress"  # the default of the API
    is_valid = _ADDRESS_TYPES.get(kind) if isinstance(kind, str) else None
    return {"type": kind, "value": entry["value"]} if is_valid and is_valid(entry.get("value")) else {}


ADDRESSES = AddressField(("addresses",), _address, most=16)
"""The API allows 16 addresses."""

"""The lower copy of an Ingress."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from clusterset.model.policy.copied_keys import (
    NAMING_SECRETS,
    KeyPatterns,
    allowed_metadata,
    refused_on_service,
)
from controller_runtime.apimachinery import readable
from controller_runtime.apimachinery.decoding import decode
from virtual_node.translate.base.fields import LONGEST_NAME, is_address, is_dns_name
from virtual_node.translate.base.view import (
    NOT_NEEDED,
    Translation,
    UntranslatableError,
    View,
    no_copy,
    of_spec,
)
from virtual_node.translate.follow.addresses import AddressField

_CLASS = "kubernetes.io/ingress.class"
_NO_BACKEND = {"service": {"name": "service-without-copy", "port": {"number": 80}}}
"""No copy has this name while no upper Service has it."""
_NAMING = {
    "Secret": KeyPatterns(NAMING_SECRETS),
    "ConfigMap": KeyPatterns(
        (
            "*/auth-proxy-set-headers",
            "*/fastcgi-params-configmap",
            "nginx.ingress.kubernetes.io/custom-headers",
        )
    ),
}
"""Annotations of Ingress controllers that name an object: ``name``, ``namespace/name`` or ``secret://namespace/name``."""
_NAMESPACES = KeyPatterns(("k8s.apisix.apache.org/svc-namespace", "projectcontour.io/tls-cert-namespace"))
"""Annotations of Ingress controllers that name the namespace of the Services or of the Secrets of an Ingress."""
_SCHEME = "secret://"
_OIDC = "alb.ingress.kubernetes.io/auth-idp-oidc"
"""Annotation of the AWS Load Balancer Controller: JSON with the name of a Secret in the field ``secretName``."""
_ACTIONS = KeyPatterns(("alb.ingress.kubernetes.io/actions.*",))
"""Annotations of the same controller: JSON that can forward requests to Services, and to any load balancer targets of AWS."""
_TARGETS = frozenset({"targetgrouparn", "targetgroupname"})


def lower_ingress(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of an Ingress; no spec if none of its Services has a copy in the lower cluster.

    A path without a usable backend gets one that does not exist, so that requests get an error. If the path were left
    out, they would get the answer of a path or default backend that is meant for others.

    Raises:
        UntranslatableError: none of its backends is a Service, or annotations of it or of its Services forbid a copy.
    """
    spec, metadata = upper.get("spec") or {}, upper["metadata"]
    backends = _Backends(view, metadata["namespace"])
    below = {key: value for key, value in spec.items() if key not in {"defaultBackend", "rules"}}
    name = spec.get("ingressClassName") or (metadata.get("annotations") or {}).get(_CLASS)
    if name:
        below["ingressClassName"] = view.ingress_classes.get(name, name)
    if (default := spec.get("defaultBackend")) and backends.is_usable(default, "defaultBackend is left out"):
        below["defaultBackend"] = default
    rules = [_rule(rule, f"rules[{number}]", backends) for number, rule in enumerate(spec.get("rules") or ())]
    if not backends.usable:
        if backends.notes and not backends.has_services:
            raise UntranslatableError(backends.notes[0])
        return NOT_NEEDED
    backends.check_services()
    if rules:
        below["rules"] = rules
    named = _named(metadata, view)
    secrets = [entry["secretName"] for entry in spec.get("tls") or () if entry.get("secretName")]
    return of_spec(below, backends.notes, [*secrets, *named.objects["Secret"]], named.objects["ConfigMap"])


def lower_annotations(upper: Mapping[str, Any], view: View) -> dict[str, str]:
    """Return the annotations that name a Secret, a ConfigMap or a namespace, as the copy of an Ingress has them.

    Raises:
        UntranslatableError: one of them names an object of another namespace, or a Service without a copy.
    """
    return _named(upper["metadata"], view).annotations


class _Named(NamedTuple):
    """What annotations of an Ingress name."""

    annotations: dict[str, str]
    """Annotations that the copy has with another value: with the lower namespace."""
    objects: dict[str, list[str]]
    """Names of Secrets and ConfigMaps of its namespace, by kind."""


def _named(metadata: Mapping[str, Any], view: View) -> _Named:
    """Return what the annotations of an Ingress name.

    An object of another namespace has no copy, so the lower Ingress controller would use an unmanaged one, and for example
    the certificates of others. An administrator can allow that with ``policy.metadata.keep``.
    """
    namespace = metadata["namespace"]
    rules = view.rules_of(namespace)
    annotations = allowed_metadata("Ingress", None, metadata.get("annotations"), rules).annotations
    is_decided = KeyPatterns(tuple(rules.keep))
    undecided = {key: value for key, value in annotations.items() if key not in is_decided}
    named = _Named({}, {kind: [] for kind in _NAMING})
    for kind, patterns in _NAMING.items():
        for key in patterns.among(annotations):
            value = annotations[key].strip()
            scheme = _SCHEME if value.startswith(_SCHEME) else ""
            where, _, name = value.removeprefix(scheme).rpartition("/")
            if where in {"", namespace}:
                if is_dns_name(name):
                    prefix = f"{scheme}{view.lower_namespace(namespace)}/" if where else scheme
                    named.annotations[key] = f"{prefix}{name}"
                    named.objects[kind].append(name)
            elif not value.startswith("file://") and key in undecided:
                raise _of_another_namespace(key, f"a {kind}", namespace)
    for key in _NAMESPACES.among(undecided):
        if undecided[key] != namespace:
            raise _of_another_namespace(key, "objects", namespace)
        named.annotations[key] = view.lower_namespace(namespace)
    if _OIDC in annotations:
        found = (value for name, value in _fields(_OIDC, annotations[_OIDC]) if name == "secretname")
        named.objects["Secret"] += (one for one in found if isinstance(one, str) and is_dns_name(one))
    for key in _ACTIONS.among(undecided):
        _check_action(key, undecided[key], namespace, view)
    return named


def _check_action(key: str, text: str, namespace: str, view: View) -> None:
    """Raise UntranslatableError if an action forwards requests to something without a copy."""
    for name, value in _fields(key, text):
        if name == "servicename" and not view.has_service(namespace, str(value)):
            raise UntranslatableError(f"annotation {key}: {no_copy(str(value)[:LONGEST_NAME])}")
        if name in _TARGETS:
            raise UntranslatableError(
                f"annotation {key} names a target group, which others may use. Name a Service, or ask the "
                "administrator of virtual-node, who can add the annotation to policy.metadata.keep"
            )


def _of_another_namespace(key: str, what: str, namespace: str) -> UntranslatableError:
    return UntranslatableError(
        f"annotation {key} names {what} of another namespace, which is not copied. Use namespace {namespace}, or ask "
        "the administrator of virtual-node, who can add the annotation to policy.metadata.keep"
    )


def _fields(key: str, text: str) -> Iterator[tuple[str, Any]]:
    """Yield the names, in lower case, and values of all fields of an annotation with JSON.

    Ingress controllers in Go compare names of fields without regard to case.

    Raises:
        UntranslatableError: it is not JSON, so an Ingress controller could read other fields.
    """
    try:
        left = [decode(text)]
    except ValueError:
        raise UntranslatableError(f"annotation {key} is not valid JSON") from None
    while left:
        match left.pop():
            case dict() as fields:
                yield from ((name.casefold(), value) for name, value in fields.items())
                left += fields.values()
            case list() as items:
                left += items


def _rule(rule: Mapping[str, Any], where: str, backends: _Backends) -> dict[str, Any]:
    if rule.get("http") is None:
        return dict(rule)
    paths = [
        path
        if backends.is_usable(path["backend"], f"{where}.http.paths[{number}] answers with an error")
        else {**path, "backend": _NO_BACKEND}
        for number, path in enumerate(rule["http"]["paths"])
    ]
    return {**rule, "http": {**rule["http"], "paths": paths}}


@dataclass(slots=True)
class _Backends:
    """Decides which backends of an Ingress are kept."""

    view: View
    namespace: str
    usable: set[str] = field(default_factory=set)
    """Names of Services. Thousands of paths may use one Service with thousands of annotations."""
    has_services: bool = False
    notes: list[str] = field(default_factory=list)

    def is_usable(self, backend: Mapping[str, Any], effect: str) -> bool:
        """Report whether a backend is a Service with a copy; otherwise note what happens without it."""
        if backend.keys() != {"service"}:
            self.notes.append(f"{effect}: only Services are copied")
            return False
        self.has_services = True
        name = backend["service"]["name"]
        if not self.view.has_service(self.namespace, name):
            self.notes.append(f"{effect}: {no_copy(name)}")
            return False
        self.usable.add(name)
        return True

    def check_services(self) -> None:
        """Raise UntranslatableError if annotations of a Service forbid a copy."""
        rules = self.view.rules_of(self.namespace)
        for name in sorted(self.usable):
            if keys := refused_on_service(self.view.service_annotations(self.namespace, name), rules):
                raise UntranslatableError(
                    f"its Service {name} has annotations that may not be copied: {readable.some(keys)}. Remove them, or "
                    "ask the administrator of virtual-node, who can add them to policy.metadata.keep"
                )


def _address(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the IP and hostname of an entry; empty: neither is valid."""
    return {
        key: entry[key]
        for key, is_valid in (("ip", is_address), ("hostname", is_dns_name))
        if is_valid(entry.get(key))
    }


ADDRESSES = AddressField(("loadBalancer", "ingress"), _address, most=500)

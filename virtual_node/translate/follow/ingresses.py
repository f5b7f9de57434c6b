"""The lower copy of an Ingress."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from clusterset.model.policy.copied_keys import KeyPatterns, allowed_metadata
from controller_runtime.apimachinery.decoding import decode
from virtual_node.translate.base.fields import is_address, is_dns_name
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
_SECRETS = KeyPatterns(
    (
        "*/auth-secret",
        "*/auth-tls-secret",
        "*/basic-auth-secret",
        "*/proxy-ssl-secret",
        "*/secure-crt-secret",
        "*/secure-verify-ca-secret",
        "haproxy.org/server-ca",
        "haproxy.org/server-crt",
        "nginx.com/jwt-key",
    )
)
"""Annotations of Ingress controllers that name a Secret: ``name``, ``namespace/name`` or ``secret://namespace/name``."""
_SCHEME = "secret://"
_OIDC = "alb.ingress.kubernetes.io/auth-idp-oidc"
"""Annotation of the AWS Load Balancer Controller: JSON with the name of a Secret in the field ``secretName``."""


def lower_ingress(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of an Ingress; no spec if none of its Services has a copy in the lower cluster.

    A path without a usable backend gets one that does not exist, so that requests get an error. If the path were left
    out, they would get the answer of a path or default backend that is meant for others.

    Raises:
        UntranslatableError: none of its backends is a Service, or an annotation names a Secret of another namespace.
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
    if rules:
        below["rules"] = rules
    secrets = [entry["secretName"] for entry in spec.get("tls") or () if entry.get("secretName")]
    secrets += [name for name, _ in _named_secrets(metadata, view).values()]
    return of_spec(below, backends.notes, secrets)


def lower_annotations(upper: Mapping[str, Any], view: View) -> dict[str, str]:
    """Return the annotations that name a Secret, as the copy of an Ingress has them: with the lower namespace.

    Raises:
        UntranslatableError: one of them names a Secret of another namespace.
    """
    return {key: value for key, (_, value) in _named_secrets(upper["metadata"], view).items()}


def _named_secrets(metadata: Mapping[str, Any], view: View) -> dict[str, tuple[str, str]]:
    """Return by annotation the Secret that it names, and its value in the copy.

    A Secret of another namespace has no copy, so the lower Ingress controller would use an unmanaged Secret, and for example
    the certificates of others. An administrator can allow that with ``policy.metadata.keep``.
    """
    namespace = metadata["namespace"]
    rules = view.rules_of(namespace)
    annotations = allowed_metadata("Ingress", None, metadata.get("annotations"), rules).annotations
    is_decided = KeyPatterns(tuple(rules.keep))
    named = {}
    if name := _oidc_secret(annotations.get(_OIDC, "")):
        named[_OIDC] = (name, annotations[_OIDC])
    for key in _SECRETS.among(annotations):
        value = annotations[key].strip()
        scheme = _SCHEME if value.startswith(_SCHEME) else ""
        where, _, name = value.removeprefix(scheme).rpartition("/")
        if where in {"", namespace}:
            if is_dns_name(name):
                prefix = f"{scheme}{view.lower_namespace(namespace)}/" if where else scheme
                named[key] = (name, f"{prefix}{name}")
        elif not value.startswith("file://") and key not in is_decided:
            raise UntranslatableError(
                f"annotation {key} names a Secret of another namespace, which is not copied. Use a Secret of namespace "
                f"{namespace}, or ask the administrator of virtual-node, who can add the annotation to policy.metadata.keep"
            )
    return named


def _oidc_secret(value: str) -> str:
    """Return the Secret that an annotation ``_OIDC`` names; empty: none."""
    try:
        found = decode(value)
    except ValueError:
        return ""
    name = found.get("secretName") if isinstance(found, dict) else None
    return name if isinstance(name, str) and is_dns_name(name) else ""


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
    usable: int = 0
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
        self.usable += 1
        return True


def _address(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the IP and hostname of an entry; empty: neither is valid."""
    return {
        key: entry[key]
        for key, is_valid in (("ip", is_address), ("hostname", is_dns_name))
        if is_valid(entry.get(key))
    }


ADDRESSES = AddressField(("loadBalancer", "ingress"), _address, most=500)

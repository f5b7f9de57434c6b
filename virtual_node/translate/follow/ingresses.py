"""The lower copy of an Ingress."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from virtual_node.translate.base.fields import is_address, is_dns_name
from virtual_node.translate.follow.addresses import AddressField
from virtual_node.translate.follow.view import Translation, UntranslatableError, View

NOT_COPIED = (
    "cert-manager.io/",
    "acme.cert-manager.io/",
    "kubernetes.io/tls-acme",
    "external-dns.alpha.kubernetes.io/",
    "kubernetes.io/ingress.class",
)
"""Prefixes of annotations that are not copied. The certificate is copied from the upper cluster, which also publishes the
DNS names; two programs would overwrite each other's results. The class becomes ``ingressClassName``."""
_CLASS = "kubernetes.io/ingress.class"


def lower_ingress(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of an Ingress; no spec if none of its Services has a copy in the lower cluster.

    Raises:
        UntranslatableError: none of its backends is a Service.
    """
    spec, metadata = upper.get("spec") or {}, upper["metadata"]
    notes: list[str] = []
    below = {key: value for key, value in spec.items() if key not in {"defaultBackend", "rules"}}
    name = spec.get("ingressClassName") or (metadata.get("annotations") or {}).get(_CLASS)
    if name:
        below["ingressClassName"] = view.ingress_classes.get(name, name)
    backends = []
    if default := spec.get("defaultBackend"):
        if "service" in default:
            below["defaultBackend"] = default
            backends.append(default)
        else:
            notes.append("defaultBackend is left out: only Services are copied")
    rules = []
    for number, rule in enumerate(spec.get("rules") or ()):
        if rule.get("http") is None:
            rules.append(rule)
            continue
        paths = [path for path in rule["http"]["paths"] if "service" in path["backend"]]
        if len(paths) < len(rule["http"]["paths"]):
            notes.append(f"rules[{number}]: paths without a Service are left out: only Services are copied")
        if paths:
            rules.append({**rule, "http": {**rule["http"], "paths": paths}})
            backends += [path["backend"] for path in paths]
    services = {backend["service"]["name"] for backend in backends}
    if not any(view.has_service(metadata["namespace"], service) for service in services):
        if notes and not services:
            raise UntranslatableError(notes[0])
        return Translation(None)
    if rules:
        below["rules"] = rules
    secrets = [entry["secretName"] for entry in spec.get("tls") or () if entry.get("secretName")]
    return Translation(below, tuple(notes[:5]), tuple(dict.fromkeys(secrets)))


def _address(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the IP and hostname of an entry; empty: neither is valid."""
    return {
        key: entry[key]
        for key, is_valid in (("ip", is_address), ("hostname", is_dns_name))
        if is_valid(entry.get(key))
    }


ADDRESSES = AddressField(("loadBalancer", "ingress"), _address, most=500)

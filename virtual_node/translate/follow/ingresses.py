"""The lower copy of an Ingress, and the addresses of the copy that the upper Ingress reports."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from controller_runtime.api import names
from controller_runtime.api.decoding import decode
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
_MAX_ADDRESSES = 50
_LONGEST = 253


def lower_ingress(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of an Ingress; no spec if none of its Services has a copy in the lower cluster.

    Raises:
        UntranslatableError: no rule can be copied.
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


def addresses(ingress: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the addresses in the status of an Ingress or Service, without ports."""
    balancer = (ingress.get("status") or {}).get("loadBalancer") or {}
    found = []
    for entry in list(balancer.get("ingress") or ())[:_MAX_ADDRESSES]:
        address = {key: entry[key] for key in ("ip", "hostname") if _is_short(entry.get(key))}
        if address and address not in found:
            found.append(address)
    return found


def reported(copy: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the addresses that this lower cluster may have written to the upper status."""
    try:
        found = decode((copy["metadata"].get("annotations") or {}).get(names.ANNOTATION_REPORTED, "[]"))
    except ValueError:
        return []
    entries = found if isinstance(found, list) else []
    return [entry for entry in entries[: 2 * _MAX_ADDRESSES] if isinstance(entry, dict)]


def report(entries: Iterable[Mapping[str, str]]) -> str:
    """Return the value of the annotation that ``reported`` reads."""
    return json.dumps(list(entries), sort_keys=True, separators=(",", ":"))


def merged(
    upper: Mapping[str, Any], current: Iterable[dict[str, str]], earlier: Iterable[dict[str, str]]
) -> list[dict[str, Any]]:
    """Return the upper addresses with those of a lower cluster.

    Args:
        upper: the upper Ingress. Addresses that others wrote are kept.
        current: the addresses in the lower cluster.
        earlier: those that this lower cluster has reported; they are removed unless they are current.
    """
    current = list(current)
    stale = [entry for entry in earlier if entry not in current]
    balancer = (upper.get("status") or {}).get("loadBalancer") or {}
    kept = [entry for entry in balancer.get("ingress") or () if entry not in stale]
    return kept + [entry for entry in current if entry not in kept]


def _is_short(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _LONGEST

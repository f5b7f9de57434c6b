"""The lower copy of a NetworkPolicy. It never allows traffic that the upper policy does not allow.

A NetworkPolicy isolates the pods that it selects, and its rules allow traffic. So a rule, peer or port that cannot be
translated is left out, and less traffic is allowed. If the selector of the isolated pods cannot be translated, the
copy selects more pods and has no rules.

Namespace selectors are evaluated against the labels of upper namespaces, because lower namespaces have other labels.
All pod selectors also require the ownership label, so that other lower pods are neither isolated nor admitted. Users of
lower namespaces can write this label to their own pods, so peers require it of the lower namespace, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from clusterset.model import names, namespace_map
from clusterset.model.namespace_map import NEVER_MIRRORED
from controller_runtime.apimachinery.matching import compile_selector
from virtual_node.translate.base.view import (
    TOO_MANY_SELECTORS,
    Selector,
    Translation,
    View,
    compared,
    of_spec,
    selector_code,
    too_large,
)

LABEL_NAMESPACE = "kubernetes.io/metadata.name"
"""Label with the name of a namespace, which every API server sets since Kubernetes 1.21."""
_DNS = {"matchLabels": {"k8s-app": "kube-dns"}}
_DIRECTIONS = (("Ingress", "ingress", "from"), ("Egress", "egress", "to"))
_SPEC = frozenset({"podSelector", "policyTypes", "ingress", "egress"})
_PEER = frozenset({"podSelector", "namespaceSelector", "ipBlock"})
_BLOCK = frozenset({"cidr", "except"})
_SELECTOR = frozenset({"matchLabels", "matchExpressions"})
_PORT = frozenset({"protocol", "port", "endPort"})
_MAX_NAMES = 2_000
"""Maximum number of namespace names in one copy, because a selector can match every namespace."""


def lower_policy(upper: Mapping[str, Any], view: View) -> Translation:
    """Return the copy of a NetworkPolicy.

    Raises:
        ValueError: a selector is malformed.
    """
    return _Writer(view, upper["metadata"]["namespace"]).policy(upper.get("spec") or {})


def selects_namespaces(upper: Mapping[str, Any]) -> bool:
    """Report whether a policy has a namespace selector, so that its copy depends on other namespaces."""
    spec = upper.get("spec") or {}
    return any(
        peer.get("namespaceSelector") is not None
        for _, field, peers in _DIRECTIONS
        for rule in spec.get(field) or ()
        for peer in rule.get(peers) or ()
    )


def namespace_selectors(upper: Mapping[str, Any]) -> list[Selector]:
    """Return the selectors of a policy that are compared with all namespaces."""
    spec = upper.get("spec") or {}
    found = (
        peer.get("namespaceSelector") or {}
        for _, field, peers in _DIRECTIONS
        for rule in spec.get(field) or ()
        for peer in rule.get(peers) or ()
    )
    return compared(one for one in found if not _selects_all(one) and _names(one) is None)


class _Writer:
    """Translates one policy and collects what is left out."""

    def __init__(self, view: View, namespace: str) -> None:
        self._view = view
        self._namespace = namespace
        self._notes: list[str] = []
        self._names_left = _MAX_NAMES
        self._selected: dict[bytes, Collection[str] | None] = {}
        """As ``View.selected``, by selector."""

    def policy(self, spec: Mapping[str, Any]) -> Translation:
        selector = spec.get("podSelector") or {}
        types = spec.get("policyTypes") or ["Ingress", *(["Egress"] if spec.get("egress") else [])]
        is_whole = True
        if lost := self._view.lost_keys(selector):
            self._note(
                f"podSelector uses {', '.join(lost)}, which lower pods do not have: the copy selects more pods and "
                "allows no traffic to them. Select pods by other labels"
            )
            is_whole = False
        if unknown := sorted(spec.keys() - _SPEC):
            self._note(f"{', '.join(unknown)} is not known: the copy allows no traffic")
            is_whole = False
        body: dict[str, Any] = {
            "podSelector": self._view.only_ours(self._view.without_lost(selector)),
            "policyTypes": list(types),
        }
        for direction, field, peers in _DIRECTIONS:
            if direction in types:
                found = spec.get(field) or () if is_whole else ()
                body[field] = list(self._rules(found, field, peers))
        return of_spec(body, self._notes)

    def _rules(self, rules: Iterable[Mapping[str, Any]], field: str, peers: str) -> Iterable[dict[str, Any]]:
        for number, rule in enumerate(rules):
            where = f"{field}[{number}]"
            ports = rule.get("ports") or ()
            unknown = {*(rule.keys() - {peers, "ports"})}.union(*(port.keys() - _PORT for port in ports))
            if unknown:
                self._note(f"{where} is left out: {', '.join(sorted(unknown))} is not known")
                continue
            below: dict[str, Any] = {"ports": list(ports)} if ports else {}
            if above := rule.get(peers):
                below[peers] = [
                    found
                    for position, peer in enumerate(above)
                    for found in self._peers(peer, f"{where}.{peers}[{position}]", is_egress=peers == "to")
                ]
                if not below[peers]:
                    continue  # a rule without peers would allow all traffic
            yield below

    def _peers(self, peer: Mapping[str, Any], where: str, *, is_egress: bool) -> Iterable[dict[str, Any]]:
        block, namespaces = peer.get("ipBlock"), peer.get("namespaceSelector")
        parts = (peer, _PEER), (block or {}, _BLOCK), (namespaces or {}, _SELECTOR)
        if unknown := sorted(key for part, known in parts for key in part.keys() - known):
            self._note(f"{where} is left out: {', '.join(unknown)} is not known")
            return
        if block is not None:
            yield {"ipBlock": block}
            return
        pods = peer.get("podSelector")
        if pods is None and namespaces is None:
            self._note(f"{where} is left out: it is empty")
            return
        if lost := self._view.lost_keys(pods or {}):
            self._note(
                f"{where} is left out: podSelector uses {', '.join(lost)}, which lower pods do not have. Select pods "
                "by other labels"
            )
            return
        below = self._view.only_ours(pods or {})
        if namespaces is None:
            yield {"podSelector": below}
            return
        if is_egress and self._is_dns(pods or {}, namespaces):
            # Lower pods use the DNS of their own cluster, as upper pods use the DNS of the upper cluster.
            yield {"namespaceSelector": named([NEVER_MIRRORED]), "podSelector": _DNS}
        if _selects_all(namespaces):
            # Adopted namespaces have no label.
            every = {} if self._view.adopt else _made(self._view)
            yield {"namespaceSelector": every, "podSelector": below}
        elif found := self._namespaces(namespaces, where, is_dns=pods == _DNS):
            for selector in lower_namespaces(found, self._view):
                yield {"namespaceSelector": selector, "podSelector": below}

    def _is_dns(self, pods: Mapping[str, Any], namespaces: Mapping[str, Any]) -> bool:
        """Report whether a peer selects the DNS pods of the upper cluster, perhaps among others."""
        labels = self._view.labels_of(NEVER_MIRRORED)
        selects_pods = compile_selector(pods)(_DNS["matchLabels"])
        return labels is not None and selects_pods and compile_selector(namespaces)(labels)

    def _namespaces(self, selector: Mapping[str, Any], where: str, *, is_dns: bool) -> list[str]:
        """Return the lower names of the upper namespaces that a selector matches."""
        if why := too_large(selector):
            self._note(f"{where} is left out: namespaceSelector {why}")
            return []
        named = _names(selector)
        if named is None:
            # Thousands of peers may have the same selector.
            code = selector_code(selector)
            if code not in self._selected:
                self._selected[code] = self._view.selected(selector)
            found = self._selected[code]
            if found is None:
                self._note(f"{where} is left out: {TOO_MANY_SELECTORS}")
                return []
        else:
            matches = compile_selector(selector)
            labels = ((name, self._view.labels_of(name)) for name in named)
            found = [name for name, known in labels if known is not None and matches(known)]
            if NEVER_MIRRORED in found and not is_dns:
                self._note(
                    f"{where}: pods of {NEVER_MIRRORED} do not run in the lower cluster, and only egress to its DNS is "
                    "allowed. For other pods, add an ipBlock"
                )
        allowed = (
            [name for name in found if self._view.is_allowed(name)]
            if len(found) <= self._names_left
            else found
        )
        self._names_left -= len(allowed)
        if self._names_left < 0:
            self._note(
                f"{where} is left out: the policy selects more than {_MAX_NAMES} namespaces by name. Use an empty "
                "namespaceSelector, or divide the policy"
            )
            return []
        return sorted({self._view.lower_namespace(name) for name in allowed})

    def _note(self, text: str) -> None:
        if len(self._notes) < 5:
            self._notes.append(text)


def _selects_all(selector: Selector) -> bool:
    return not selector.get("matchLabels") and not selector.get("matchExpressions")


def _names(selector: Mapping[str, Any]) -> list[str] | None:
    """Return the only namespaces that a selector can match; None: it can match any."""
    name = (selector.get("matchLabels") or {}).get(LABEL_NAMESPACE)
    if name is not None:
        return [name]
    for one in selector.get("matchExpressions") or ():
        if one["key"] == LABEL_NAMESPACE and one["operator"] == "In":
            return list(dict.fromkeys(one.get("values") or ()))
    return None


def lower_namespaces(found: Iterable[str], view: View) -> list[dict[str, Any]]:
    """Return selectors that together select lower namespaces by their names.

    A namespace that virtual-node did not create, and may not adopt, can have one of these names. Its users are others.
    """
    made, adopted = list[str](), list[str]()
    for name in found:
        (adopted if namespace_map.adopts(name, view.adopt) else made).append(name)
    return [*([_made(view) | named(made)] if made else ()), *([named(adopted)] if adopted else ())]


def _made(view: View) -> dict[str, Any]:
    """Return a selector of the lower namespaces that virtual-node created. Their users cannot change labels of namespaces."""
    return {"matchLabels": {names.LABEL_UPPER_CLUSTER: view.cluster_id}}


def named(namespaces: list[str]) -> dict[str, Any]:
    """Return a selector of namespaces by their names."""
    return {"matchExpressions": [{"key": LABEL_NAMESPACE, "operator": "In", "values": namespaces}]}

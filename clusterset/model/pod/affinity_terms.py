"""Pod (anti-)affinity terms and topology spread of a lower pod, and the label keys that API servers expand in them. No IO.

The terms select only pods of the upper cluster, in namespaces made for it.
The namespaces and the namespaceSelector of a term refer to the upper cluster. If they were copied, they would select
pods of others in the lower cluster: a pod could find out where these pods run, and keep them off its nodes. So a term
names the lower namespaces of the upper namespaces that it selects now, and its labelSelector requires the ownership
label of lower pods. Upper namespaces that are created or labelled later are not added.

Lower pods lack labels that stay in the upper cluster, and overrides change others. A required affinity to such a label could
never be met, so terms and constraints that name it are left out: they are in force in the upper cluster only.

At creation the API server adds ``key In [the pod's value]`` to the labelSelector for every key of
``matchLabelKeys`` (``NotIn`` for ``mismatchLabelKeys``) and keeps the keys. A pod created from a stored pod's
spec would get the expressions twice and is refused: "exists in both matchLabelKeys and labelSelector". API
servers do this for affinity since 1.29 (KEP-3633) and for topology spread since 1.34 (KEP-3243).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from clusterset.model import names, namespace_map
from clusterset.model.namespace_map import NEVER_MIRRORED
from clusterset.model.policy.copied_keys import KeyPatterns
from controller_runtime.apimachinery import matching
from controller_runtime.apimachinery.matching import PREFERRED, REQUIRED

MOST_NAMES = 1000
"""Number of lower namespaces that the terms of a pod may name in total, because they multiply: terms x namespaces."""
MOST_REQUIREMENTS = 32
"""Number of requirements in the different namespaceSelectors of a pod, because each is compared with all namespaces."""
_MOST_SELECTIONS = 1000
_LISTS = ("matchLabelKeys", "mismatchLabelKeys")


class UpperNamespaces:
    """The upper namespaces with their labels. Selections are kept until a namespace changes."""

    def __init__(self, is_known: Callable[[], bool] = lambda: True) -> None:
        """Start without namespaces.

        Args:
            is_known: whether the namespaces have been read. Terms that need them are left out until then.
        """
        self.is_known = is_known
        self._labels: dict[str, Mapping[str, str]] = {}
        self._selections: dict[str, frozenset[str]] = {}
        """By the text of a selector."""

    def __contains__(self, name: str) -> bool:
        """Report whether the namespace exists."""
        return name in self._labels

    def upsert(self, name: str, labels: Mapping[str, str]) -> None:
        """Store a new or changed namespace."""
        if self._labels.get(name) != labels:
            self._labels[name] = labels
            self._selections.clear()

    def remove(self, name: str) -> None:
        """Forget a deleted namespace."""
        if self._labels.pop(name, None) is not None:
            self._selections.clear()

    def selected(self, selector: Mapping[str, Any]) -> frozenset[str]:
        """Return the namespaces that a LabelSelector matches; none if it is invalid."""
        key = repr(selector)
        if key not in self._selections:
            if len(self._selections) >= _MOST_SELECTIONS:
                self._selections.clear()
            self._selections[key] = self._matching(selector)
        return self._selections[key]

    def _matching(self, selector: Mapping[str, Any]) -> frozenset[str]:
        try:
            matches = matching.compile_selector(selector)
        except ValueError:
            return frozenset()
        return frozenset(name for name, labels in self._labels.items() if matches(labels))


@dataclass(frozen=True, slots=True)
class Reach:
    """The pods of a lower cluster that the terms of a pod may select."""

    namespaces: UpperNamespaces = field(default_factory=UpperNamespaces)
    lower_name: Callable[[str], str] = str
    """Returns the lower name of an upper namespace."""
    allowed: Sequence[str] = ()
    """Shell patterns of the upper namespaces that may use the lower cluster; empty: all."""
    cluster_id: str = ""
    """Value of the ownership label of lower pods; empty: unknown, so terms select the pods of all upper clusters."""
    changed: KeyPatterns = field(default_factory=KeyPatterns)
    """Labels of upper pods that lower pods lack or have with another value."""

    def lower_spread(self, spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return the topology spread constraints of the lower pod: those over ``kubernetes.io/hostname``."""
        constraints = spec.get("topologySpreadConstraints") or ()
        return [constraint for constraint in constraints if self._holds(constraint)]

    def lower_affinity(self, spec: Mapping[str, Any]) -> dict[str, Any]:
        """Return the pod affinity and anti-affinity of the lower pod, given the spec of the upper pod.

        Only terms over ``kubernetes.io/hostname`` are kept, because other topology keys name upper topology. Terms
        beyond the limits of ``refusal`` select nothing.
        """
        return self._lower(spec)[0]

    def refusal(self, spec: Mapping[str, Any]) -> str:
        """Return why an upper pod's terms are too many to be written to its lower pod; empty: they are not."""
        return self._lower(spec)[1]

    def _lower(self, spec: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
        made: dict[str, Any] = {}
        budget = _Budget()
        for kind, group, position, entry in _entries(spec.get("affinity") or {}):
            upper = entry if group == REQUIRED else entry.get("podAffinityTerm") or {}
            if not self._holds(upper):
                continue
            if _is_about_others(upper) and not self.namespaces.is_known():
                continue
            term = self._term(upper, budget, f"spec.affinity.{kind}.{group}[{position}]")
            if term is None:
                # Without this term, a required affinity that no pod can satisfy would allow every node. All other terms
                # that select no pod have no effect.
                if (kind, group) != ("podAffinity", REQUIRED):
                    continue
                term = {"topologyKey": names.LABEL_HOSTNAME}
            lower = term if group == REQUIRED else {**entry, "podAffinityTerm": term}
            made.setdefault(kind, {}).setdefault(group, []).append(lower)
        return made, budget.exceeded

    def _holds(self, entry: Mapping[str, Any]) -> bool:
        """Report whether a term or constraint has a meaning in the lower cluster: its topology and all its labels are there."""
        return entry.get("topologyKey") == names.LABEL_HOSTNAME and not any(
            key in self.changed or names.is_reserved(key) for key in _selected_keys(entry)
        )

    def _term(self, upper: Mapping[str, Any], budget: _Budget, where: str) -> dict[str, Any] | None:
        """Return the lower term of an upper term; None: it selects no pod."""
        selector = upper.get("labelSelector")
        if selector is None:
            return None
        term = {key: value for key, value in upper.items() if key != "namespaceSelector"}
        term["labelSelector"] = {
            **selector,
            "matchExpressions": [*(selector.get("matchExpressions") or ()), self._is_ours()],
        }
        if _is_about_others(upper):
            term["namespaces"] = self._lower_names(upper, budget, where)
            if not term["namespaces"]:
                return None
        return term

    def _is_ours(self) -> dict[str, Any]:
        requirement: dict[str, Any] = {"key": names.LABEL_UPPER_CLUSTER, "operator": "Exists"}
        return requirement | ({"operator": "In", "values": [self.cluster_id]} if self.cluster_id else {})

    def _lower_names(self, term: Mapping[str, Any], budget: _Budget, where: str) -> list[str]:
        """Return the lower names of the upper namespaces that a term selects."""
        selected = {name for name in term.get("namespaces") or () if name in self.namespaces}
        if (selector := term.get("namespaceSelector")) is not None and budget.may_compare(selector, where):
            selected |= self.namespaces.selected(selector)
        lower = {self.lower_name(name) for name in selected if self._serves(name)}
        return sorted(lower) if budget.may_name(len(lower), where) else []

    def _serves(self, namespace: str) -> bool:
        return namespace != NEVER_MIRRORED and namespace_map.allowed(namespace, self.allowed)


@dataclass(slots=True)
class _Budget:
    """Counts what the terms of one pod need."""

    exceeded: str = ""
    """Which limit a field has exceeded, for users; empty: none."""
    _named: int = 0
    _requirements: dict[str, int] = field(default_factory=dict)
    """By the text of a namespaceSelector, because equal ones are compared once."""

    def may_compare(self, selector: Mapping[str, Any], where: str) -> bool:
        """Count a namespaceSelector; report whether it may be compared with all namespaces."""
        self._requirements[repr(selector)] = sum(len(part or ()) for part in selector.values())
        if sum(self._requirements.values()) <= MOST_REQUIREMENTS:
            return True
        self.exceeded = self.exceeded or (
            f"{where}: the namespaceSelectors of a pod may have {MOST_REQUIREMENTS} requirements in total. Use fewer "
            "different namespaceSelectors"
        )
        return False

    def may_name(self, count: int, where: str) -> bool:
        """Count namespaces that a lower term names; report whether it may name them."""
        self._named += count
        if self._named <= MOST_NAMES:
            return True
        self.exceeded = self.exceeded or (
            f"{where}: the terms of a pod may select {MOST_NAMES} namespaces in total. Use fewer terms, or select "
            "fewer namespaces"
        )
        return False


def _selected_keys(entry: Mapping[str, Any]) -> Iterator[str]:
    """Yield the label keys by which a term or constraint selects pods."""
    selector = entry.get("labelSelector") or {}
    yield from selector.get("matchLabels") or ()
    for requirement in selector.get("matchExpressions") or ():
        yield requirement.get("key", "")
    for name in _LISTS:
        yield from entry.get(name) or ()


def selected_keys(spec: Mapping[str, Any]) -> set[str]:
    """Return the label keys by which the affinity terms and spread constraints of a pod select pods, perhaps the pod itself."""
    terms = [entry.get("podAffinityTerm") or entry for *_, entry in _entries(spec.get("affinity") or {})]
    return {
        key
        for entry in (*terms, *(spec.get("topologySpreadConstraints") or ()))
        for key in _selected_keys(entry)
    }


def _is_about_others(term: Mapping[str, Any]) -> bool:
    """Report whether a term names or selects namespaces; otherwise it is about the pod's own namespace."""
    return bool(term.get("namespaces")) or term.get("namespaceSelector") is not None


def _entries(affinity: Mapping[str, Any]) -> Iterator[tuple[str, str, int, Mapping[str, Any]]]:
    """Yield kind, group, position and entry of each (weighted) pod affinity term."""
    for kind in ("podAffinity", "podAntiAffinity"):
        for group in (REQUIRED, PREFERRED):
            for position, entry in enumerate((affinity.get(kind) or {}).get(group) or ()):
                yield kind, group, position, entry


def settled(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored pod's spec for another creation, without label keys that are already in its labelSelectors."""
    made = dict(spec)
    if affinity := spec.get("affinity"):
        made["affinity"] = {
            kind: _affinity(value) if kind in {"podAffinity", "podAntiAffinity"} else value
            for kind, value in affinity.items()
        }
    if constraints := spec.get("topologySpreadConstraints"):
        made["topologySpreadConstraints"] = [_selecting(constraint) for constraint in constraints]
    return made


def expanded(term: Mapping[str, Any], labels: Mapping[str, str]) -> dict[str, Any]:
    """Return an affinity term with the requirements that the API server adds for its label keys, without the keys.

    Args:
        term: of a pod that is being created.
        labels: labels of the pod.
    """
    made = {key: value for key, value in term.items() if key not in _LISTS}
    added = [
        {"key": key, "operator": operator, "values": [labels[key]]}
        for name, operator in zip(_LISTS, ("In", "NotIn"), strict=True)
        for key in term.get(name) or ()
        if key in labels
    ]
    if added and (selector := term.get("labelSelector")) is not None:
        expressions = [*(selector.get("matchExpressions") or ()), *added]
        made["labelSelector"] = {**selector, "matchExpressions": expressions}
    return made


def _affinity(affinity: Mapping[str, Any]) -> dict[str, Any]:
    made = dict(affinity)
    if required := affinity.get(REQUIRED):
        made[REQUIRED] = [_selecting(term) for term in required]
    if preferred := affinity.get(PREFERRED):
        made[PREFERRED] = [
            {**weighted, "podAffinityTerm": _selecting(weighted["podAffinityTerm"])} for weighted in preferred
        ]
    return made


def _selecting(holder: Mapping[str, Any]) -> dict[str, Any]:
    """Return a term or a constraint without the label keys for which its labelSelector has expressions."""
    made = dict(holder)
    named = {
        expression.get("key")
        for expression in (holder.get("labelSelector") or {}).get("matchExpressions") or ()
    }
    for name in _LISTS:
        if name in made and named:
            made[name] = [key for key in made[name] if key not in named]
            if not made[name]:
                del made[name]
    return made

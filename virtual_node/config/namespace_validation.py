"""Validation of the namespaces in a configuration: no two upper namespaces may share a lower one.

Conflicts that the configuration does not show (with another process, another upper cluster or existing
namespaces) are refused at run time, because the owner is recorded on the lower namespace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import combinations

import msgspec

from clusterset.model import namespace_map
from virtual_node.config.argument_types import LABEL
from virtual_node.config.types import LowerClusterConfig, NamespaceConfig

_RESERVED_PREFIX = "kube-"
_SYSTEM = ("default", "kube-node-lease", "kube-public", "kube-system")
"""Namespaces of every cluster. A lower one is used only for the upper namespace of that name, if ``adopt`` allows it."""


def problems(clusters: Sequence[LowerClusterConfig]) -> Iterator[str]:
    """Yield the problems, each as ``field: problem``."""
    for position, cluster in enumerate(clusters):
        yield from _of_one(f"clusters[{position}].namespaces", cluster.namespaces)
    different = {
        (one.kubeconfig, one.context, msgspec.json.encode(one.namespaces)): position
        for position, one in reversed(list(enumerate(clusters)))
    }
    for first, second in combinations(sorted(different.values()), 2):
        one, other = clusters[first], clusters[second]
        if one.kubeconfig == other.kubeconfig and one.context == other.context:
            meeting = _meeting(one.namespaces, other.namespaces)
            if meeting:
                yield (
                    f"clusters[{second}].namespaces: leads to the same lower cluster as clusters[{first}], and {meeting}; "
                    "give both the same namespaces, or prefixes of which none begins with the other"
                )


def _of_one(where: str, config: NamespaceConfig) -> Iterator[str]:
    prefix = config.prefix
    if prefix and not LABEL.fullmatch(prefix + "x"):
        yield f"{where}.prefix: {prefix!r} cannot begin a namespace's name"
    made = (name for name in _SYSTEM if prefix and name.startswith(prefix))
    system = next((name for name in made if LABEL.fullmatch(name.removeprefix(prefix))), "")
    if system or prefix.startswith(_RESERVED_PREFIX):
        what = f"would make {system}" if system else "belongs to the lower cluster's own system"
        yield f"{where}.prefix: {prefix!r} {what}; choose another prefix"
    targets: dict[str, str] = {}
    for upper, lower in config.map.items():
        field = f"{where}.map.{upper}"
        if not LABEL.fullmatch(lower):
            yield f"{field}: {lower!r} is not a namespace's name (DNS-1123 label)"
        elif lower != upper and (lower in _SYSTEM or lower.startswith(_RESERVED_PREFIX)):
            yield f"{field}: {lower!r} belongs to the lower cluster's own system; choose another name"
        elif lower in targets:
            yield f"{where}.map: {targets[lower]!r} and {upper!r} both lead to {lower!r}"
        elif other := _unmapped(lower, config):
            yield (
                f"{field}: {lower!r} is the lower namespace of upper namespace {other!r}, too; "
                f"map that one elsewhere, or leave it out with {where}.allowed"
            )
        targets[lower] = upper


def _unmapped(lower: str, config: NamespaceConfig) -> str:
    """Return the upper namespace that maps to ``lower`` without an entry in ``map``; empty: none."""
    upper = lower.removeprefix(config.prefix)
    is_led_here = lower.startswith(config.prefix) and LABEL.fullmatch(upper) and upper not in config.map
    return upper if is_led_here and namespace_map.allowed(upper, config.allowed) else ""


def _meeting(one: NamespaceConfig, other: NamespaceConfig) -> str:
    """Return how two upper namespaces would share a lower one under two configurations; empty: they would not."""
    for first, second in ((one, other), (other, one)):
        for upper, lower in first.map.items():
            mapped = next((name for name, target in second.map.items() if target == lower), "")
            rival = mapped or _unmapped(lower, second)
            if rival and rival != upper:
                return f"{upper!r} and {rival!r} would share {lower!r}"
        rest = second.prefix.removeprefix(first.prefix)
        begins = second.prefix.startswith(first.prefix) and LABEL.fullmatch(f"{rest}x")
        if rest and begins and _may_begin(rest, first.allowed):
            return f"{rest + 'x'!r} and 'x' would share {second.prefix + 'x'!r}"
    return ""


def _may_begin(prefix: str, patterns: Sequence[str]) -> bool:
    """Report whether a name with that prefix may match a shell pattern; no patterns match every name."""
    beginnings = [re.split(r"[*?\[]", pattern, maxsplit=1)[0] for pattern in patterns]
    return not patterns or any(one.startswith(prefix) or prefix.startswith(one) for one in beginnings)

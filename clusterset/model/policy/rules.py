"""Computes the rules for one upper namespace from the policy, its preset and its overrides."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from clusterset.model.policy.config import AnnotationRules, MetadataRules, Policy, Rules
from clusterset.model.policy.presets import DEFAULT_PRESET, DEFAULTS, PRESETS

_WILDCARDS = frozenset("*?[]!")
_LONGEST = 4096
"""Maximum characters of a value that are compared. Valid names are shorter, but tenants choose the values."""


@dataclass(frozen=True, slots=True)
class Effective:
    """The rules for one upper namespace, by field name of ``Rules``."""

    values: Mapping[str, Any]
    sources: Mapping[str, str]
    """Where in the configuration each rule is set."""

    @property
    def annotations(self) -> AnnotationRules:
        """Return the rule about annotations of pods."""
        found: AnnotationRules = self.values["annotations"]
        return found

    @property
    def metadata(self) -> MetadataRules:
        """Return the rule about labels and annotations of copies other than pods."""
        found: MetadataRules = self.values["metadata"]
        return found


class PolicySet:
    """A lower cluster's policy with resolved presets and overrides."""

    def __init__(
        self, policy: Policy | None = None, *, cluster: str = "", host_paths: Sequence[str] = ()
    ) -> None:
        """Resolve presets and overrides once; ``host_paths``: those of ``volumes.allowedHostPaths``."""
        policy = policy or Policy()
        where = f"clusters[{cluster}].policy"
        cluster_wide = _resolve(policy, where, _defaults(where))
        if host_paths:
            cluster_wide = _with_host_paths(cluster_wide, policy, host_paths, cluster)
        self._cluster_wide = cluster_wide
        self._overrides = {
            pattern: _resolve(rules, f"{where}.namespaces[{pattern}]", cluster_wide)
            for pattern, rules in sorted(policy.namespaces.items(), key=lambda item: _specificity(item[0]))
        }

    def of(self, namespace: str) -> Effective:
        """Return the rules for an upper namespace."""
        for pattern, rules in self._overrides.items():
            if fnmatch.fnmatchcase(namespace, pattern):
                return rules
        return self._cluster_wide


def matches(value: str, patterns: Sequence[str]) -> bool:
    """Return whether a value matches one of the shell patterns."""
    return any(fnmatch.fnmatchcase(value[:_LONGEST], pattern) for pattern in patterns)


def field_of(rule: str) -> str:
    """Return the name of a rule in the configuration, such as ``hostPorts``."""
    return _FIELDS[rule]


def _defaults(where: str) -> Effective:
    values = {**DEFAULTS, **PRESETS[DEFAULT_PRESET]}
    sources = {rule: f"{where}.{field_of(rule)}, default" for rule in DEFAULTS}
    sources |= dict.fromkeys(PRESETS[DEFAULT_PRESET], f"{where}.preset, default {DEFAULT_PRESET}")
    return Effective(values, sources)


def _resolve(rules: Rules, where: str, base: Effective) -> Effective:
    """Return base rules overridden by the preset and then by the rules that are set."""
    values, sources = dict(base.values), dict(base.sources)
    if rules.preset is not None:
        values |= PRESETS[rules.preset]
        sources |= dict.fromkeys(PRESETS[rules.preset], f"{where}.preset={rules.preset}")
    for rule in values:
        if (value := getattr(rules, rule)) is not None:
            values[rule] = value
            sources[rule] = f"{where}.{field_of(rule)}"
    return Effective(values, sources)


def _with_host_paths(base: Effective, policy: Policy, host_paths: Sequence[str], cluster: str) -> Effective:
    source = f"clusters[{cluster}].volumes.allowedHostPaths"
    explicit = policy.host_paths or []
    if explicit:
        source += f" and {base.sources['host_paths']}"
    return Effective(
        {**base.values, "host_paths": [*explicit, *host_paths]}, {**base.sources, "host_paths": source}
    )


def _specificity(pattern: str) -> tuple[bool, int, str]:
    """Return a sort key: names before patterns, then more literal characters first, then alphabetical order."""
    literal = sum(character not in _WILDCARDS for character in pattern)
    return literal < len(pattern), -literal, pattern


_FIELDS = dict(zip(Rules.__struct_fields__, Rules.__struct_encode_fields__, strict=True))

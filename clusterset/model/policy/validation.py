"""Finds errors of a policy in a configuration that its types do not detect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from clusterset.model.policy import volumes
from clusterset.model.policy.config import Policy, Rules
from clusterset.model.policy.presets import ALL, PROC_MOUNTS, PROFILE_TYPES
from clusterset.model.policy.rules import field_of

_CHOICES = {
    "seccomp_profiles": PROFILE_TYPES,
    "app_armor_profiles": PROFILE_TYPES,
    "proc_mounts": PROC_MOUNTS,
}


def problems(where: str, policy: Policy) -> list[str]:
    """Return the errors of a policy, each as ``field: what``; empty: none."""
    found = list(_problems(where, policy))
    for pattern, rules in policy.namespaces.items():
        found += _problems(f"{where}.namespaces[{pattern}]", rules)
    return found


def _problems(where: str, rules: Rules) -> Iterator[str]:
    for rule, known in _CHOICES.items():
        yield from _unknown(f"{where}.{field_of(rule)}", getattr(rules, rule) or (), (*known, ALL))
    yield from volumes.problems(where, rules.volume_types or (), rules.host_paths or ())
    if rules.images is None:
        return
    for field in ("allow", "deny"):
        for pattern in getattr(rules.images, field):
            if "/" not in pattern and not pattern.startswith("*"):
                yield (
                    f"{where}.images.{field}: {pattern!r} matches no image, because full names begin with a registry: "
                    f"docker.io/library/{pattern}"
                )


def _unknown(where: str, found: Sequence[Any], known: Sequence[str]) -> Iterator[str]:
    for value in found:
        if value not in known:
            yield f"{where}: unknown {value!r}, known are {', '.join(known)}"

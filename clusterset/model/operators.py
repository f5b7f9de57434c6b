"""Programs whose labels and annotations on a lower pod make them act on it, if they also run in the lower cluster. No IO.

They see only a part there: the pod has neither its owner nor the custom resources of the upper cluster. So they refuse it,
hold it back with a scheduling gate, or add a second sidecar. A preset keeps a program's keys in the upper cluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

from clusterset.model.policy.copied_keys import KeyPatterns

OperatorName = Literal[
    "argo-workflows",
    "consul",
    "coscheduling",
    "dapr",
    "datadog",
    "istio",
    "jobset",
    "koordinator",
    "kubeflow",
    "kueue",
    "kuma",
    "kyverno",
    "leaderworkerset",
    "linkerd",
    "opentelemetry",
    "spark",
    "vault",
    "volcano",
    "yunikorn",
]

OPERATORS: Mapping[OperatorName, KeyPatterns] = {
    "argo-workflows": KeyPatterns(("workflows.argoproj.io/*",)),
    "consul": KeyPatterns(("consul.hashicorp.com/*",)),
    "coscheduling": KeyPatterns(
        ("pod-group.scheduling.sigs.k8s.io", "pod-group.scheduling.sigs.k8s.io/*", "scheduling.x-k8s.io/*")
    ),
    "dapr": KeyPatterns(("dapr.io/*",)),
    "datadog": KeyPatterns(("admission.datadoghq.com/*",)),
    "istio": KeyPatterns(("istio.io/*", "*.istio.io/*")),
    "jobset": KeyPatterns(("jobset.sigs.k8s.io/*", "alpha.jobset.sigs.k8s.io/*")),
    "koordinator": KeyPatterns(("koordinator.sh/*", "*.koordinator.sh/*")),
    "kubeflow": KeyPatterns(("kubeflow.org/*", "*.kubeflow.org/*")),
    "kueue": KeyPatterns(("kueue.x-k8s.io/*",)),
    "kuma": KeyPatterns(("kuma.io/*",)),
    "kyverno": KeyPatterns(("kyverno.io/*", "*.kyverno.io/*")),
    "leaderworkerset": KeyPatterns(("leaderworkerset.sigs.k8s.io/*",)),
    "linkerd": KeyPatterns(("linkerd.io/*", "*.linkerd.io/*")),
    "opentelemetry": KeyPatterns(("*.opentelemetry.io/*",)),
    "spark": KeyPatterns(("sparkoperator.k8s.io/*",)),
    "vault": KeyPatterns(("vault.hashicorp.com/*",)),
    "volcano": KeyPatterns(("volcano.sh/*", "*.volcano.sh/*", "scheduling.k8s.io/group-name")),
    "yunikorn": KeyPatterns(("yunikorn.apache.org/*",)),
}
"""Keys by program. A key that the program sets on pods of others, or reads on them, is in one of its own domains."""
_MOST_NAMED = 3
"""Keys and programs that one message names."""


def patterns(presets: Iterable[OperatorName]) -> tuple[str, ...]:
    """Return the patterns of the keys of some programs."""
    return tuple(pattern for name in presets for pattern in OPERATORS[name].patterns)


def causes(name: str, keys: Iterable[str]) -> list[str]:
    """Return the label and annotation keys of a pod because of which a gate, finalizer or webhook may be there.

    Args:
        name: of the gate, finalizer or webhook, such as ``kueue.x-k8s.io/admission``.
        keys: the pod's label and annotation keys. Those of the same program or the same domain count.
    """
    keys = list(keys)
    domain = name.partition("/")[0]
    same = [found for found in OPERATORS.values() if found.among([name, f"{domain}/"])]
    return sorted(
        {key for found in same for key in found.among(keys)}
        | {key for key in keys if "/" in key and key.partition("/")[0] == domain}
    )


def advice(names: Iterable[str], keys: Iterable[str], *, guess: bool = False) -> str:
    """Return the keys that programs of the lower cluster may act on, and the setting that keeps them in the upper cluster.

    Args:
        names: of its gates, finalizers or webhooks.
        keys: the pod's label and annotation keys.
        guess: if no key belongs to these names, name the keys of all known programs. Many webhooks have generic names.

    Returns: sentences; empty: the pod has no such key.
    """
    keys = list(keys)
    related = sorted({key for name in names for key in causes(name, keys)})
    searched = related or (keys if guess else [])
    presets = [name for name, found in OPERATORS.items() if found.among(searched)]
    acting = related or sorted({key for name in presets for key in OPERATORS[name].among(keys)})
    if not acting:
        return ""
    shown = ", ".join(acting[:_MOST_NAMED]) + (", …" if len(acting) > _MOST_NAMED else "")
    setting = (
        f"ignore.presets: [{', '.join(presets[:_MOST_NAMED])}]"
        if presets
        else "ignore.labels or ignore.annotations"
    )
    return (
        f"That program may act on {shown} of the pod. To keep such keys in the upper cluster, set {setting} in the virtual node's "
        "configuration and create the pod again"
    )

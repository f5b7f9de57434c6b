"""The rights that the multi-scheduler needs, above and below."""

from __future__ import annotations

from controller_runtime.rights import EXTENDER_SECRET, OWN_NAMESPACE, Right

UPPER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "which virtual node stands for which lower cluster"),
    Right("", "pods", ("list", "watch"), "what was bound and is not seen below yet"),
    Right("", "events", ("create", "patch"), "why a pod's node was chosen, in kubectl describe"),
    # Not create: a Secret of type service-account-token would be filled with the token of any account there.
    Right(
        "",
        "secrets",
        ("get", "update"),
        "certificates of extender and scheduler that we make ourselves",
        "",
        OWN_NAMESPACE,
        (EXTENDER_SECRET,),
    ),
)

BIND: tuple[Right, ...] = (Right("", "pods", ("create",), "bind pods (bindVerb)", "binding"),)
"""Besides ``UPPER``, where the scheduler has the extender bind."""

LOWER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "room on every lower node"),
    Right("", "pods", ("list", "watch"), "what takes it"),
    Right("", "persistentvolumes", ("list", "watch"), "nodes that volumes are tied to"),
    # Without these pods are sent where admission may refuse them.
    Right("", "resourcequotas", ("list", "watch"), "pods that a quota below would refuse"),
    Right("", "limitranges", ("list", "watch"), "what pods below get, and may have"),
    Right("", "namespaces", ("list", "watch"), "namespaces that the virtual node must not use"),
    Right("scheduling.k8s.io", "priorityclasses", ("list", "watch"), "quotas of priority classes below"),
)
"""What ``virtual-node lower-cluster register`` grants to the read-only account."""

"""The rights that the webhook needs in the upper cluster."""

from __future__ import annotations

from controller_runtime.rights import OWN_NAMESPACE, READ, Right

_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")

UPPER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "the names of the virtual nodes"),
    Right("", "persistentvolumeclaims", ("list", "watch"), "claims that tie a pod to a cluster"),
    Right("", "persistentvolumes", ("list", "watch"), "volumes that tie a pod to a cluster"),
    *(
        Right("admissionregistration.k8s.io", kind, (*READ, "update"), "our CA in the webhook configurations")
        for kind in _CONFIGURATIONS
    ),
    Right("", "configmaps", ("list", "watch"), "the descheduler's memory of full nodes", "", OWN_NAMESPACE),
    Right(
        "", "secrets", (*READ, "create", "update"), "certificates that we make ourselves", "", OWN_NAMESPACE
    ),
    Right(
        "coordination.k8s.io",
        "leases",
        ("get", "create", "update"),
        "one replica looks after certificates",
        "",
        OWN_NAMESPACE,
    ),
)

REGISTER: tuple[Right, ...] = tuple(
    Right("admissionregistration.k8s.io", kind, ("create",), "make the webhook configurations (--register)")
    for kind in _CONFIGURATIONS
)
"""Besides ``UPPER``, with ``--register``; the chart makes the configurations itself."""

"""The rights that the webhook needs in the upper cluster."""

from __future__ import annotations

from clusterset.model.moving.node_avoidance import CONFIG_MAP
from clusterset.model.rights import WEBHOOK_CONFIGURATION, WEBHOOK_SECRET
from controller_runtime.rights import READ, Right, in_own_namespace, leader_election
from webhook.program import PROGRAM

_GROUP = "admissionregistration.k8s.io"
_CONFIGURATIONS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")

UPPER: tuple[Right, ...] = (
    Right("", "nodes", ("list", "watch"), "the names of the virtual nodes"),
    Right("", "persistentvolumeclaims", ("list", "watch"), "claims that tie a pod to a cluster"),
    Right("", "persistentvolumes", ("list", "watch"), "volumes that tie a pod to a cluster"),
    *(
        Right(
            _GROUP,
            kind,
            (*READ, "update"),
            "the webhook's CA in the webhook configurations",
            names=(WEBHOOK_CONFIGURATION,),
        )
        for kind in _CONFIGURATIONS
    ),
    in_own_namespace(
        "", "configmaps", ("list", "watch"), "the descheduler's memory of full nodes", CONFIG_MAP
    ),
    # No ``create``, because Kubernetes fills a new Secret of type service-account-token with the token of any
    # account in the namespace.
    in_own_namespace("", "secrets", ("get", "update"), "the webhook's own certificates", WEBHOOK_SECRET),
    *leader_election(PROGRAM.name, "only one replica writes the webhook configurations"),
)

REGISTER: tuple[Right, ...] = (
    *(
        Right(_GROUP, kind, ("create",), "create the webhook configurations (--register)")
        for kind in _CONFIGURATIONS
    ),
    in_own_namespace("", "secrets", ("create",), "the Secret for the webhook's own certificates"),
)
"""Additional rights with ``--register``. Without it, the chart creates these objects, the Secret without
data."""

"""The rights that the descheduler needs in the upper cluster."""

from __future__ import annotations

from controller_runtime.rights import OWN_NAMESPACE, READ, Right

UPPER: tuple[Right, ...] = (
    Right("", "nodes", (*READ, "patch"), "taint virtual nodes of lost clusters"),
    Right("", "pods", (*READ, "create", "delete"), "move bare pods"),
    Right("", "pods", ("create",), "move pods that a controller replaces", "eviction"),
    Right(
        "",
        "configmaps",
        (*READ, "create", "patch", "delete"),
        "the memory of full nodes; durable records of bare pods, in the pods' namespaces",
    ),
    Right("", "persistentvolumeclaims", ("get",), "claims that tie a pod to a cluster"),
    Right("", "persistentvolumes", ("get",), "where such a claim's volume can be reached"),
    Right("", "events", ("create", "patch"), "tell the story in kubectl describe"),
    Right("coordination.k8s.io", "leases", READ, "heartbeats of virtual nodes", "", "kube-node-lease"),
    Right(
        "coordination.k8s.io",
        "leases",
        ("get", "create", "update"),
        "only one of several replicas works",
        "",
        OWN_NAMESPACE,
    ),
)

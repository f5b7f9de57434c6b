"""The rights that the descheduler needs in the upper cluster."""

from __future__ import annotations

from clusterset.model.moving import node_avoidance
from clusterset.model.rights import VIRTUAL_NODE
from controller_runtime.rights import READ, Right, in_own_namespace, leader_election
from descheduler import memory
from descheduler.moving import record
from descheduler.program import PROGRAM

_MEMORY = "the memory of full nodes and of moves"

UPPER: tuple[Right, ...] = (
    Right("", "nodes", READ, "virtual nodes"),
    Right("", "nodes", ("patch",), "taint virtual nodes of lost clusters", names=(VIRTUAL_NODE,)),
    Right("", "pods", (*READ, "create", "delete"), "move bare pods"),
    Right(
        "",
        "pods",
        ("patch",),
        "start the replacement of a pod before its eviction, and keep divisions when workloads scale down",
    ),
    Right("", "services", ("list",), "whether a Service would lose such a pod"),
    *(
        Right(
            "apps", resource, ("get",), "how many pods an owner needs, and how many additional pods it allows"
        )
        for resource in ("deployments", "replicasets", "statefulsets")
    ),
    Right("", "pods", ("create",), "move pods that a controller replaces", "eviction"),
    Right(
        "lifecycle.k8s.io",
        "evictionrequests",
        ("get", "list", "create", "delete"),
        "let the evictionResponders of a pod act before it is moved",
    ),
    Right("", "namespaces", ("get",), "never create a pod in a later namespace of the same name"),
    in_own_namespace("", "configmaps", ("create",), _MEMORY),
    in_own_namespace("", "configmaps", ("get", "patch"), _MEMORY, node_avoidance.CONFIG_MAP, memory.HISTORY),
    in_own_namespace(
        "apps",
        "controllerrevisions",
        (*READ, "create", "delete"),
        "durable records of pods that are being moved",
    ),
    in_own_namespace(
        "",
        "secrets",
        ("get", "update"),
        "the key of the records' hashes. Create the Secret empty, or grant create too",
        record.KEY_OBJECT,
    ),
    Right("", "persistentvolumeclaims", ("get",), "claims that tie a pod to a cluster"),
    Right("", "persistentvolumes", ("get",), "volumes that tie a pod to a cluster"),
    Right("", "events", ("create", "patch"), "report in kubectl describe"),
    Right("coordination.k8s.io", "leases", READ, "heartbeats of virtual nodes", "", "kube-node-lease"),
    *leader_election(PROGRAM.name, "only one of several replicas works"),
)

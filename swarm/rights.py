"""The rights that the component needs in the upper cluster."""

from __future__ import annotations

from controller_runtime.rights import READ, Right, leader_election
from swarm.program import PROGRAM
from swarm.spec import GROUP

UPPER: tuple[Right, ...] = (
    Right("", "nodes", READ, "whether a deleted pod's node is healthy"),
    Right("coordination.k8s.io", "leases", READ, "heartbeats of nodes", namespace="kube-node-lease"),
    *leader_election(PROGRAM.name, "only one of several replicas works"),
)

SWARMS: tuple[Right, ...] = (
    Right(GROUP, "swarms", (*READ, "patch"), "Swarms; their finalizer"),
    Right(GROUP, "swarms", ("update",), "assignments, and the record of grants", "status"),
    Right("", "configmaps", (*READ, "create", "update", "delete"), "lists of jobs; the share of each worker"),
    Right(
        "coordination.k8s.io",
        "leases",
        (*READ, "create", "update", "delete"),
        "acknowledgements of workers; slots of Deployments",
    ),
    Right("", "pods", READ, "workers"),
    Right("", "pods", ("create",), "restart workers (refresh: Restart)", "eviction"),
    Right("apps", "statefulsets", READ, "how many workers there are"),
    Right("apps", "deployments", READ, "how many workers there are"),
    Right("", "events", ("create", "patch"), "Events about Swarms"),
)
"""Needed in the namespace of ``--namespace``, or without this flag in all namespaces."""

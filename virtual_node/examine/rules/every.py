"""Registers all rules of the examination."""

from virtual_node.examine.rules import (  # noqa: F401
    apis,
    capacity,
    clusters,
    disruption,
    drift,
    mirroring,
    names,
    network,
    ownership,
    scheduling,
    start,
    webhook,
)

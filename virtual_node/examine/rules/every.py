"""Registers all rules of the examination."""

from virtual_node.examine.rules import (  # noqa: F401
    capacity,
    clusters,
    disruption,
    drift,
    mirroring,
    network,
    ownership,
)

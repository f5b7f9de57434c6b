"""Registers the rules about the objects of all clusters, beside those about an installation."""

from virtual_node.examine.rules import (  # noqa: F401
    apis,
    capacity,
    clusters,
    disruption,
    drift,
    mirroring,
    network,
    ownership,
    scheduling,
    webhook,
)

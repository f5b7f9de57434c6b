"""The rules of the examination, by what they judge. Importing this package registers all of them."""

from virtual_node.examine.rules import (  # noqa: F401
    capacity,
    clusters,
    components,
    disruption,
    drift,
    mirroring,
    network,
    nodes,
    ownership,
    pods,
    swarms,
)

"""The rules of the examination, by what they judge.

Importing this package registers those about an installation and its pods, which all tools apply. ``load`` registers the others.
"""

from virtual_node.examine.rules import nodes, pods  # noqa: F401


def load() -> None:
    """Register all rules; their modules take longer to import, because they translate objects."""
    from virtual_node.examine.rules import (  # noqa: F401, PLC0415
        apis,
        capacity,
        clusters,
        containers,
        disruption,
        drift,
        mirroring,
        network,
        ownership,
        placement,
        scheduling,
        waits,
        webhook,
        workloads,
    )

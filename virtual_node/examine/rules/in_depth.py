"""Registers the rules about one pod in depth, beside those about an installation."""

from virtual_node.examine.rules import (  # noqa: F401
    containers,
    lower_placement,
    placement,
    waits,
    workloads,
)

"""Registers the rules about one pod in depth, beside those about an installation."""

from virtual_node.examine.rules import containers, placement, waits, workloads  # noqa: F401

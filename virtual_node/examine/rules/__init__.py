"""The rules of the examination, by what they judge. Importing this package registers all of them."""

from virtual_node.examine.rules import components, nodes, pods, swarms  # noqa: F401

"""The rules of the examination, by what they judge.

Importing this package registers those about an installation, which all tools apply. Importing ``every`` registers all;
it takes longer, because these rules translate objects.
"""

from virtual_node.examine.rules import components, nodes, pods, swarms  # noqa: F401

"""The controllers of one lower cluster: thin IO around the pure functions of ``virtual_node.translate``."""

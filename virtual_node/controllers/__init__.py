"""The controllers of one lower cluster: the IO around the pure functions of ``virtual_node.translate``."""

"""``virtual-node-annotator``: writes the usage of lower nodes to Nodes, as annotations that other programs read.

``annotations`` computes them, ``writer`` writes them when they change. The state of the lower clusters is ``shared``'s.
"""

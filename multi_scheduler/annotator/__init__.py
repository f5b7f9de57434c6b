"""``virtual-node-annotator``: writes the usage of lower nodes to Nodes, as annotations that other programs read.

``writer`` computes the values and writes changed ones. ``multi_scheduler.shared`` holds the state of the lower clusters.
"""

"""``virtual-node status``: the table of virtual nodes and its watch."""

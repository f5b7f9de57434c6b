"""``virtual-node drain``, ``cordon`` and ``uncordon``: empty virtual nodes without disruption."""

"""``virtual-node diagnose``: explains why one pod, workload or node does not work."""

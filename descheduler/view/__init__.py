"""The upper cluster's objects as strategies need them: pods, virtual nodes, heartbeats, taints, replacements."""

"""Reads the clusters: pods, virtual nodes, heartbeats, taints and replacements. Writes nothing."""

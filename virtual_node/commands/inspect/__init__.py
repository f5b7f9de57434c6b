"""``virtual-node inspect``: compares the upper with the lower clusters and lists findings."""

"""``virtual-node inspect``: compares both clusters and lists findings by rule."""

"""Virtual nodes: the Node object, capacity, usage, summary statistics and Prometheus text."""

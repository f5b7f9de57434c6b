"""A read-only live page about one virtual-node process: clusters, capacity, pods and their problems, events."""

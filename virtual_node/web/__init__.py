"""A read-only page about one virtual-node process: clusters, capacity, pods and why they wait, events; live."""

"""The Node object of a virtual node, its Lease, capacity and health."""

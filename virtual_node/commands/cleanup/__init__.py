"""``virtual-node cleanup``: removes an installation from all clusters."""

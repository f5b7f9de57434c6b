"""``virtual-node cleanup``: removes what virtual nodes left in both clusters."""

"""``virtual-node lower-cluster``: register, join and leave, with the account and the Helm release."""

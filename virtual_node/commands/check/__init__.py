"""``virtual-node check``: checks the clusters before the daemon is started with the same flags."""

"""The permissions of the daemon and of operators, and the manifests that grant them."""

"""The virtual node: a kubelet that runs its pods in a whole lower cluster."""

"""The virtual node: a kubelet whose machine is a whole lower cluster."""

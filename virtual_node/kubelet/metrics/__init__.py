"""Metrics routes of the kubelet API, read from the lower kubelets or metrics.k8s.io."""

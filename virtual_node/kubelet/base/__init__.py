"""The interface between the kubelet API and the virtual node, and the errors of the kubelet API."""

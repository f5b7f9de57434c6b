"""The server of the kubelet API, with routes, logs and pod lists."""

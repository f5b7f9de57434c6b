"""The kubelet API's server, its routes, logs and pod lists."""

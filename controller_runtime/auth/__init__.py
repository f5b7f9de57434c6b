"""Connections to API servers: kubeconfig files, credentials, proxies, and the key of our keyed hashes."""

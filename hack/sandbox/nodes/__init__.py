"""Nodes of lower clusters: real ones with containerd and a kubelet, and simulated ones (kwok); their network.

Imports the top of ``hack.sandbox`` and ``hack.sandbox.builds``.
"""

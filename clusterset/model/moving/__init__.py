"""Pods that are moved between lower clusters: requests to drain, pods that may move, nodes that an owner's pods avoid.

The descheduler, the webhook and the virtual node exchange these by annotations and ConfigMaps. No IO.
"""

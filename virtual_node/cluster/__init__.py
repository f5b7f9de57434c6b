"""Wiring: the caches, controllers and kubelet endpoints of one lower cluster."""

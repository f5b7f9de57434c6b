"""Certificates of the extender and of kube-scheduler that the multi-scheduler makes itself.

Import ``keeper`` to serve and renew them. ``secrets`` is the content of their Secrets and does no IO.
"""

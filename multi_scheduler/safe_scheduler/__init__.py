"""kube-safe-scheduler's agents and paths, for schedulers that are configured for them.

Import ``routes`` to serve them. ``scheduler`` holds the agents and does no IO.
"""

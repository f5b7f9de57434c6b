"""Several processes on one machine that divide the lower clusters (``--workers N``).

``parent`` starts the processes, restarts those that end, and serves their health and metrics. ``worker`` is what one
process gets from the parent. ``families`` carries its metrics to the parent.
"""

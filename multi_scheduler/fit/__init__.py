"""The fit agent: checks whether one of the lower nodes behind a virtual node has room for a pod.

Import ``agent`` and ``settings``. Modules outside of ``fit`` also use ``cluster``.
"""

"""The multi-scheduler: a scheduler extender that checks lower clusters before a pod is bound.

``cli`` and ``app`` are the program. ``agent`` and ``view`` are the interface for the agents in ``agents`` and ``fit``.
``config`` and ``flags`` read the settings. Other components import nothing from here.
"""

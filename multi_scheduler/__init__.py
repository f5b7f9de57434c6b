"""The multi-scheduler: a scheduler extender that checks lower clusters before a pod is bound.

``program`` and ``app`` are the program. ``agent`` and ``view`` are the interface for the agents in ``agents``. ``config``
reads the settings. Other components import nothing from here.
"""

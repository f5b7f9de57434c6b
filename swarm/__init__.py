"""Swarm: assigns a list of jobs to a set of worker pods and hands jobs over between them.

``program`` and ``app`` are the controller. ``assignment``, ``handover`` and ``planning`` decide and do no IO; ``controller``
does the IO. ``worker`` is the library for workers; it imports no other part of ``swarm``. Other components import
nothing from ``swarm``.
"""

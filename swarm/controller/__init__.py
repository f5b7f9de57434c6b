"""Reconciles Swarms: reads caches, writes objects. ``reconciler`` is the entry and creates all parts."""

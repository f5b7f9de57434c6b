"""Reconciles Swarms: reads caches, writes objects. ``reconciler`` is the entry; ``app`` creates all parts."""

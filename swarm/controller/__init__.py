"""Reconciles Swarms: reads caches, writes objects. ``reconciler`` creates all parts except ``caches``."""

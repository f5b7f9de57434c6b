"""The agents that are installed with the multi-scheduler.

They are loaded by their entry points. ``by_node`` is the base of agents that score single lower nodes.
"""

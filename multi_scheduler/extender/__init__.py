"""What kube-scheduler calls: the HTTP server, its messages, the extender and its record of agents' answers.

Import ``server`` to serve, ``extender`` to ask the agents. Agents import nothing from here.
"""

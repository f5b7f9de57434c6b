"""Messages between controller and worker: the share, the acknowledgement, and the membership that connects them. No IO.

``client`` and ``worker`` import them.
"""

"""Components in a sandbox: our webhook, descheduler and multi-scheduler with the stock scheduler, and metrics-server.

Imports the top of ``hack.sandbox`` and ``hack.sandbox.builds``.
"""

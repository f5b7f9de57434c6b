"""Components in a sandbox, such as the webhook, the multi-scheduler with the stock scheduler, and metrics-server.

Imports the top of ``hack.sandbox`` and ``hack.sandbox.builds``.
"""

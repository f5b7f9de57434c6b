"""The programs and packages that a sandbox runs: found, downloaded or built, and cached. Images without a registry.

Imports only ``hack.sandbox.command`` and ``hack.sandbox.errors``.
"""

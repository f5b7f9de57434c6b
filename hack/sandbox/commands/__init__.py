"""The commands of ``python -m hack.sandbox``, such as up, down, demo and helm.

Imports all other parts of ``hack.sandbox``.
"""

"""Measured usage of lower nodes: where it comes from, and what is kept of it."""

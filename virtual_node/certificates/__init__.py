"""Serving certificates of virtual nodes: requested, rotated, and the CA of their clients."""

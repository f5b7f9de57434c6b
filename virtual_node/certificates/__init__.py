"""Serving certificates of virtual nodes, requested and rotated, and the CA of their clients."""

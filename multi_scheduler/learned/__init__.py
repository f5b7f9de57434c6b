"""Learns from what became of pods which virtual nodes to prefer."""

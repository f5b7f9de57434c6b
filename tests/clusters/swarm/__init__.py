"""Swarms on real clusters."""

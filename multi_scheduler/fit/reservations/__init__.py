"""Reserves room for pods until their lower pods have nodes, and chooses preemption victims. Only ``fit`` imports it."""

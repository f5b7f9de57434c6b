"""Reserves room for pods until their lower pods run, and chooses preemption victims. Only the fit agent imports it."""

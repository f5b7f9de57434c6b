"""Reserves room for pods until their lower pods have nodes, and chooses preemption victims. No IO except the informer of bound pods."""

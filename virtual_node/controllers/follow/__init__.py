"""Copies of NetworkPolicies, PodDisruptionBudgets and other objects that ``follow`` of a lower cluster names."""

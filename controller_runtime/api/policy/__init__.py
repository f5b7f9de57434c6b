"""Policies: what pods may ask of a lower cluster. Pure; the virtual node and the fit agent use the same code."""

"""Policies: what pods may request of a lower cluster. No IO; used by the virtual node and the fit agent."""

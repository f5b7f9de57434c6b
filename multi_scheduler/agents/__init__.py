"""Agents that come along, beside the fit agent."""

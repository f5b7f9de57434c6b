"""Evaluates placement on a production trace: a simulator that calls the agents' own functions, and its plots."""

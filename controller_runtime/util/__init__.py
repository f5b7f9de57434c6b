"""Helpers without knowledge of Kubernetes: backoff, rate limits, lines, file changes, byte budgets."""

"""Kubernetes Events: recorder, aggregation of similar events, and the queue before the API server."""

"""Swarm: assigns a list of jobs to a set of worker pods and hands jobs over between them."""

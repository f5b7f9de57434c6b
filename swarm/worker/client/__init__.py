"""Requests of a worker to the API server: sources of its share, and the reporter that writes the acknowledgement.

Only ``worker`` imports from here.
"""

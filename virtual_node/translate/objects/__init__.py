"""Copies of ConfigMaps and Secrets, and lower namespaces."""

"""Copies of ConfigMaps, Secrets and ResourceClaims, and lower namespaces."""

"""Pods: creation, update, status and deletion, by one controller over both clusters."""

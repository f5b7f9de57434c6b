"""Pods: one controller over both clusters handles creation, update, status and deletion."""

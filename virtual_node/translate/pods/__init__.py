"""Pods: the lower pod, updates of it, and the status of the upper one."""

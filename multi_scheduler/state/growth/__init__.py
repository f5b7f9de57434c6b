"""Nodes that the autoscaler of a lower cluster may add, and which pods wait for them. No IO."""

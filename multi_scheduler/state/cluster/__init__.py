"""The index of a lower cluster's nodes and pods, and kube-scheduler's filters over it. No IO."""

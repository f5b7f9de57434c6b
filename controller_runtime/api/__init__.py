"""Functions on Kubernetes objects that more than one component needs. No IO."""

"""Functions on pods: their requests, references, conditions, and the specification of the lower pod. No IO."""

"""Predicts admission in a lower cluster: policy, quotas, limit ranges. No IO."""
